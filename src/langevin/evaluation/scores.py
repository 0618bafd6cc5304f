"""Scores of predictions: class probabilities (n, classes) against labels (n,), values against values.

Functions ending in `_each` give one number per example, whose mean is the score.
"""

from __future__ import annotations

from torch import Tensor

from langevin.evaluation.calibration import Reliability, calibration_error, reliability
from langevin.predictive import ValuePrediction

__all__ = [
    "Reliability",
    "accuracy",
    "brier",
    "calibration_error",
    "class_scores",
    "crps",
    "crps_each",
    "negative_log_likelihood",
    "reliability",
    "root_mean_square_error",
    "value_scores",
]


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """The share of examples whose most probable class is right."""
    raise NotImplementedError


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats."""
    raise NotImplementedError


def brier(probs: Tensor, labels: Tensor) -> float:
    """The mean of Σ_c (p(c) − [label = c])², in 0 … 2."""
    raise NotImplementedError


def root_mean_square_error(mean: Tensor, target: Tensor) -> float:
    """√ mean (mean − target)²."""
    raise NotImplementedError


def crps_each(prediction: ValuePrediction, target: Tensor) -> Tensor:
    """Continuous ranked probability score, closed form for a mixture of Gaussians; lower is better."""
    raise NotImplementedError


def crps(prediction: ValuePrediction, target: Tensor) -> float:
    """The mean of `crps_each`."""
    raise NotImplementedError


def class_scores(probs: Tensor, labels: Tensor, bins: int = 8) -> dict[str, float]:
    """ "accuracy", "nll", "brier", "calibration error" (equal mass), "calibration error (equal width)"."""
    raise NotImplementedError


def value_scores(prediction: ValuePrediction, target: Tensor) -> dict[str, float]:
    """ "rmse", "nll", "crps"."""
    raise NotImplementedError

"""Scores of predictions: class probabilities (n, classes) against labels (n,), values against targets.

Functions ending in `_each` return one number per example; the score is their mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation.calibration import Reliability, calibration_error, reliability
from langevin.evaluation.checks import checked

__all__ = [
    "Reliability",
    "accuracy",
    "accuracy_each",
    "brier",
    "brier_each",
    "calibration_error",
    "class_scores",
    "crps",
    "crps_each",
    "negative_log_likelihood",
    "negative_log_likelihood_each",
    "reliability",
    "root_mean_square_error",
    "squared_error_each",
    "value_negative_log_likelihood_each",
    "value_scores",
]


def accuracy_each(probs: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is correct, else 0."""
    probs, labels = checked(probs, labels)
    return (probs.argmax(1) == labels).double()


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """The share of examples whose most probable class is correct."""
    return float(accuracy_each(probs, labels).mean())


def negative_log_likelihood_each(probs: Tensor, labels: Tensor) -> Tensor:
    """−log p(label), in nats; a probability of 0 counts as the smallest float32, 1.2e-38."""
    probs, labels = checked(probs, labels)
    return -probs.gather(1, labels[:, None]).squeeze(1).clamp_min(torch.finfo(torch.float32).tiny).log()


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats."""
    return float(negative_log_likelihood_each(probs, labels).mean())


def brier_each(probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_c (p(c) − [label = c])², in 0 … 2."""
    probs, labels = checked(probs, labels)
    return (probs - torch.nn.functional.one_hot(labels, probs.shape[1])).square().sum(1)


def brier(probs: Tensor, labels: Tensor) -> float:
    """The mean of Σ_c (p(c) − [label = c])², in 0 … 2 (scikit-learn halves it for two classes)."""
    return float(brier_each(probs, labels).mean())


def squared_error_each(mean: Tensor, target: Tensor) -> Tensor:
    """(mean − target)², averaged over the dimensions of a target."""
    mean, target = _rows(mean), _like(mean, target)
    return (mean - target).square().mean(1)


def root_mean_square_error(mean: Tensor, target: Tensor) -> float:
    """√ mean (mean − target)²."""
    return math.sqrt(float(squared_error_each(mean, target).mean()))


def value_negative_log_likelihood_each(prediction: ValuePrediction, target: Tensor) -> Tensor:
    """−log predictive density of a target, summed over its dimensions.

    The density is the mixture over samples, mean_s N(y; m_s, v_s), if the prediction has them (`samples=True`), else
    the Gaussian of the same mean and variance.
    """
    means, variances = _mixture(prediction)
    residual = _like(prediction.mean, target) - means
    log_density = (-0.5 * residual.square() / variances - 0.5 * (2 * math.pi * variances).log()).sum(2)
    return math.log(len(means)) - log_density.logsumexp(0)


def crps_each(prediction: ValuePrediction, target: Tensor) -> Tensor:
    """Continuous ranked probability score E|Y − y| − ½E|Y − Y′|, averaged over the dimensions of a target.

    In closed form for the mixture of Gaussians over samples (Grimit et al. 2006) if the prediction has them
    (`samples=True`), else for the Gaussian of the same mean and variance. In the units of y; lower is better.
    """
    means, variances = _mixture(prediction)
    to_target = _expected_distance(_like(prediction.mean, target) - means, variances).mean(0)
    between = torch.zeros_like(to_target)
    for mean, variance in zip(means, variances, strict=True):  # a loop: all pairs at once may not fit in memory
        between += _expected_distance(mean - means, variance + variances).mean(0) / len(means)
    return (to_target - between / 2).mean(1)


def crps(prediction: ValuePrediction, target: Tensor) -> float:
    """The mean of `crps_each`."""
    return float(crps_each(prediction, target).mean())


def class_scores(probs: Tensor, labels: Tensor, bins: int = 8) -> dict[str, float]:
    """ "accuracy", "nll", "brier", "calibration error" (equal mass) and "calibration error (equal width)"."""
    bins = min(bins, len(labels))
    return {
        "accuracy": accuracy(probs, labels),
        "nll": negative_log_likelihood(probs, labels),
        "brier": brier(probs, labels),
        "calibration error": calibration_error(probs, labels, bins),
        "calibration error (equal width)": calibration_error(probs, labels, bins, "width"),
    }


def value_scores(prediction: ValuePrediction, target: Tensor) -> dict[str, float]:
    """ "rmse", "nll" and "crps"."""
    return {
        "rmse": root_mean_square_error(prediction.mean, target),
        "nll": float(value_negative_log_likelihood_each(prediction, target).mean()),
        "crps": crps(prediction, target),
    }


def _expected_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, variance)."""
    std = variance.sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    z = mean / std
    above: Tensor = torch.special.ndtr(z)
    return mean * (2 * above - 1) + std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


def _mixture(prediction: ValuePrediction) -> tuple[Tensor, Tensor]:
    """Means and variances of the components, (components, n, dimensions)."""
    if prediction.samples is None:
        return _rows(prediction.mean)[None], _rows(prediction.variance)[None]
    noise = prediction.aleatoric.expand_as(prediction.samples) if prediction.noise is None else prediction.noise
    shape = (*prediction.samples.shape[:2], -1)
    return prediction.samples.double().reshape(shape), noise.double().reshape(shape)


def _rows(values: Tensor) -> Tensor:
    """(n, dimensions), in double precision."""
    given: Tensor = torch.as_tensor(values).detach()
    if given.dim() == 0 or len(given) == 0:
        raise ValueError(f"Scores need at least one example; given values of shape {tuple(given.shape)}.")
    return given.double().reshape(len(given), -1)


def _like(mean: Tensor, target: Tensor) -> Tensor:
    """The target in the shape of the mean; (n,) against (n, 1) would broadcast to (n, n)."""
    target, mean = _rows(target), _rows(mean)
    if target.shape != mean.shape:
        raise ValueError(
            f"The prediction has {mean.shape[1]} values for each of {len(mean)} examples, the target {target.shape[1]} "
            f"for each of {len(target)}."
        )
    return target

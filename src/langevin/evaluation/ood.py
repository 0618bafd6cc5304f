"""Out-of-distribution detection: does uncertainty tell inputs of another kind from those of the training data?"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from langevin.predictive import ClassPrediction


class Detection(NamedTuple):
    """How well a score tells outside (positive) from inside: 1, 1 and 0 are perfect."""

    auroc: float
    aupr: float  # average precision, outside being the positive class
    fpr95: float  # share of the inside taken for outside at the threshold that finds 95 % of the outside


def detection(inside: Tensor, outside: Tensor) -> Detection:
    """From the scores (higher: more foreign) of inside and outside inputs."""
    raise NotImplementedError


def uncertainties(prediction: ClassPrediction) -> dict[str, Tensor]:
    """Scores, higher where less is known: "max probability" (1 − it), "entropy", "mutual information".

    Mutual information is left out of a prediction that has none (entropy equals aleatoric everywhere: one sample).
    """
    raise NotImplementedError


def out_of_distribution(inside: ClassPrediction, outside: ClassPrediction) -> dict[str, Detection]:
    """The detection by each of `uncertainties`."""
    raise NotImplementedError


def confidence_histogram(probs: Tensor, bins: int = 20) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) from 0 to 1, and the share of the inputs whose highest probability lies in each bin."""
    raise NotImplementedError

"""Calibration: is a prediction with confidence p correct with frequency p? Does an interval of probability p hold?"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from langevin.core.arguments import COUNT, validated
from langevin.core.devices import as_tensor
from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation.checks import checked

Bins = Literal["mass", "width"]


class Reliability(NamedTuple):
    """Predictions binned by confidence: mean confidence, accuracy and number of examples of each bin."""

    confidence: Tensor
    accuracy: Tensor
    size: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: |confidence − accuracy|, weighted by bin size."""
        return float(((self.confidence - self.accuracy).abs() * self.size).sum() / self.size.sum())


@validated(bins=COUNT)
def reliability(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> Reliability:
    """Bins from the least to the most confident, of equal mass (±1 example) or equal width; empty bins are dropped."""
    probs, labels = checked(probs, labels)
    confidence, predicted = probs.max(1)
    return _binned(confidence, predicted == labels, bins, equal)


@validated(bins=COUNT)
def calibration_error(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> float:
    """Expected calibration error, by default with 8 bins of equal mass (Heek & Kalchbrenner 2019).

    It is biased upward: for a calibrated predictor its expectation is about 0.4·√(bins/n).
    """
    return reliability(probs, labels, bins, equal).error


@validated(bins=COUNT)
def class_reliability(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> list[Reliability]:
    """For each class c, p(c) (`confidence`) against the frequency of c (`accuracy`), over all examples."""
    probs, labels = checked(probs, labels)
    return [_binned(probs[:, c], labels == c, bins, equal) for c in range(probs.shape[1])]


@validated(bins=COUNT)
def class_calibration_errors(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> Tensor:
    """The calibration error of every class, (classes,)."""
    return torch.tensor(
        [r.error for r in class_reliability(probs, labels, bins, equal)], dtype=torch.float64, device="cpu"
    )


def probability_integral_transform(prediction: ValuePrediction, target: Tensor, *, seed: int = 0) -> Tensor:
    """F(y), the predictive cdf at the target, (n, …): uniform on (0, 1) if the prediction is calibrated.

    Of counts, a uniform draw between F(y − 1) and F(y).
    """
    upper = prediction.cdf(target)
    if not prediction.mixture.discrete:
        return upper
    lower = prediction.cdf(as_tensor(target) - 1)
    uniform = torch.rand(upper.shape, generator=torch.Generator().manual_seed(seed), dtype=upper.dtype, device="cpu")
    return lower + uniform.to(upper.device) * (upper - lower)


def interval_coverage(prediction: ValuePrediction, target: Tensor) -> dict[float, float]:
    """The share of targets inside the central intervals of probability 0.1, 0.2, …, 0.9, by probability."""
    distance = (2 * probability_integral_transform(prediction, target) - 1).abs()
    return {level / 10: float((distance <= level / 10).double().mean()) for level in range(1, 10)}


def _binned(confidence: Tensor, right: Tensor, bins: int, equal: Bins) -> Reliability:
    n = len(confidence)
    if equal == "mass":
        if not 1 <= bins <= n:
            raise ValueError(f"bins={bins} of equal mass for {n} examples; give 1 to {n}.")
        order = confidence.argsort(stable=True)
        sizes = torch.tensor([len(part) for part in order.tensor_split(bins)], device="cpu")
    elif equal == "width":
        if bins < 1:
            raise ValueError(f"bins={bins}: give 1 or more.")
        order = confidence.argsort(stable=True)
        place = (confidence * bins).ceil().clamp(1, bins).long() - 1  # bins (k/b, (k+1)/b], the first including 0
        sizes = torch.bincount(place.cpu(), minlength=bins)
        sizes = sizes[sizes > 0]
    else:
        raise ValueError(f'equal={equal!r}: choose "mass" or "width".')
    return Reliability(_means(confidence[order], sizes), _means(right[order].double(), sizes), sizes)


def _means(values: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack([part.mean() for part in torch.split(values.cpu(), sizes.tolist())])

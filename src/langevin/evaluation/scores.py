"""Scores of predicted class probabilities (n, classes) against labels (n,)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Reliability(NamedTuple):
    """Bins of predictions by confidence: in each the mean confidence, the accuracy and how many."""

    confidence: Tensor
    accuracy: Tensor
    size: Tensor


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """The share of examples whose most probable class is right."""
    return float((_checked(probs, labels).argmax(1) == labels).double().mean())


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats."""
    chosen = _checked(probs, labels).double().gather(1, labels[:, None])
    return float(-chosen.clamp_min(torch.finfo(torch.float32).tiny).log().mean())


def reliability(probs: Tensor, labels: Tensor, bins: int = 8) -> Reliability:
    """Bins of equal mass (as near as the number of examples allows), from the least to the most confident."""
    confidence, predicted = _checked(probs, labels).double().max(1)
    if not 1 <= bins <= len(labels):
        raise ValueError(f"bins={bins} for {len(labels)} examples; give 1 to {len(labels)}.")
    order = confidence.argsort()
    right = (predicted == labels).double()[order]
    pieces = list(zip(confidence[order].tensor_split(bins), right.tensor_split(bins), strict=True))
    return Reliability(
        torch.stack([c.mean() for c, _ in pieces]),
        torch.stack([r.mean() for _, r in pieces]),
        torch.tensor([len(c) for c, _ in pieces]),
    )


def calibration_error(probs: Tensor, labels: Tensor, bins: int = 8) -> float:
    """The expected difference of confidence and accuracy over bins of equal mass (8 as in Heek & Kalchbrenner 2019)."""
    found = reliability(probs, labels, bins)
    return float(((found.confidence - found.accuracy).abs() * found.size).sum() / len(labels))


def _checked(probs: Tensor, labels: Tensor) -> Tensor:
    if probs.dim() != 2 or len(probs) != len(labels) or len(labels) == 0:
        raise ValueError(
            f"Scores need probabilities (n, classes) and labels (n,) of one or more examples; given shapes "
            f"{tuple(probs.shape)} and {tuple(labels.shape)}."
        )
    sums = probs.double().sum(1)
    if bool((probs < 0).any()) or not bool((sums - 1).abs().max() < 1e-3):
        raise ValueError("Probabilities must be 0 or more and sum to 1 in each row; pass prediction.probs, not logits.")
    return probs

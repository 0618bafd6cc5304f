"""Calibration: is what is said with confidence p right with frequency p?"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

Bins = Literal["mass", "width"]


class Reliability(NamedTuple):
    """Bins of predictions by confidence: in each the mean confidence, the accuracy and how many."""

    confidence: Tensor
    accuracy: Tensor
    size: Tensor


def reliability(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> Reliability:
    """Bins from the least to the most confident, of equal mass (as near as may be) or of equal width; no empty one."""
    raise NotImplementedError


def calibration_error(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> float:
    """The expected |confidence − accuracy| over bins (8 of equal mass, as in Heek & Kalchbrenner 2019)."""
    raise NotImplementedError


def class_reliability(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> list[Reliability]:
    """For each class c: p(c) against the frequency of c (`accuracy` there), over all examples."""
    raise NotImplementedError


def class_calibration_errors(probs: Tensor, labels: Tensor, bins: int = 8, equal: Bins = "mass") -> Tensor:
    """The calibration error of every class, (classes,)."""
    raise NotImplementedError

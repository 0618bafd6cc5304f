"""Covariate shift: images corrupted at five severities, in plain torch operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

KINDS = ("gaussian noise", "blur", "contrast", "rotation")


@dataclass(frozen=True)
class Shift:
    """Scores on inputs corrupted in one way; severity 0 is the clean input."""

    kind: str
    severity: int
    accuracy: float
    nll: float
    calibration_error: float
    entropy: float  # mean


def corrupt(x: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images (n, channels, height, width), or (n, height, width), corrupted at severity 1 … 5, same shape.

    Strengths are relative to the range of x, and the result stays in that range.
    """
    raise NotImplementedError


def under_shift(
    source: Any,
    x: Tensor,
    y: Tensor,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    image_shape: tuple[int, ...] | None = None,
    seed: int = 0,
    batch_size: int = 1024,
) -> list[Shift]:
    """Scores of a run at every kind and severity, after one row for the clean input (kind "clean", severity 0).

    `image_shape` says what images flattened inputs are: (1, 8, 8) for digits.
    """
    raise NotImplementedError

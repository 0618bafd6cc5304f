"""Weights of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def checked_weights(name: str, weights: Sequence[float] | Tensor | None) -> list[float] | None:
    """The weights as a list; raises unless they are finite, 0 or more and not all 0."""
    if weights is None:
        return None
    if isinstance(weights, str | Mapping):
        raise ValueError(f"{name}(class_weights={weights!r}): write class_weights=[1.0, 2.0], one per class.")
    numbers = [float(weight) for weight in weights]
    if not (all(math.isfinite(w) and w >= 0 for w in numbers) and any(numbers)):
        raise ValueError(
            f"{name}(class_weights={numbers}): weights must be finite, 0 or more and not all 0. Write "
            f"class_weights=[1.0, 2.0], one per class."
        )
    return numbers


def check_class_weights(likelihood: Any, weights: Sequence[float], classes: int) -> None:
    """Raise unless there is one weight per class."""
    if len(weights) != classes:
        raise ValueError(
            f"{likelihood!r} has {len(weights)} class weights for {classes} classes; give one per class: "
            f"class_weights={[1.0] * min(classes, 5)}{' …' if classes > 5 else ''}."
        )

"""Small-data overfitting curves: scores on training and test data against the number of training examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class CurvePoint:
    """Scores after training on `size` examples; the gap of test and training NLL is the overfitting."""

    size: int
    train_nll: float
    test_nll: float
    train_accuracy: float
    test_accuracy: float

    @property
    def gap(self) -> float:
        """test NLL − training NLL."""
        return self.test_nll - self.train_nll


def overfitting_curve(
    make: Callable[[Any, Tensor], Any], train: Any, test: Any, sizes: Sequence[int], *, seed: int = 0
) -> list[CurvePoint]:
    """`make(x, y)` returns a run (or what predicts) for those examples; the subsets are nested, a function of seed."""
    raise NotImplementedError

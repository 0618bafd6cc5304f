"""What the functions of this package are given: test data, and anything that predicts."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from langevin.predictive import Prediction


@runtime_checkable
class Predicts(Protocol):
    """A run, or whatever answers like one."""

    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The predictive distribution at x."""
        ...


def examples(data: Any) -> tuple[Any, Tensor]:
    """Inputs and targets of test data: a pair (x, y), a TensorDataset, or a map-style data set of such pairs."""
    raise NotImplementedError


def prediction_of(source: Any, x: Any = None, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
    """The prediction of a run, or the one that is given; class probabilities (n, classes) count as a prediction."""
    raise NotImplementedError

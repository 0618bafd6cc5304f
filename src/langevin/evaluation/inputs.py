"""Arguments of the functions of this package: test data, and anything that predicts."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from langevin.core.batches import batch_size_of
from langevin.core.devices import as_tensor
from langevin.core.outputs import refuse_frames
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.inputs import gathered
from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction, on_host
from langevin.evaluation.checks import checked_probs


@runtime_checkable
class Predicts(Protocol):
    """An ensemble, or any object with its `predict`."""

    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The predictive distribution at x."""
        ...


def examples(data: Any) -> tuple[Any, Tensor]:
    """Inputs and targets of test data: a pair (x, y), a data set of such pairs, or a DataLoader."""
    if hasattr(data, "tensors"):
        data = data.tensors
    refuse_frames(data)
    if not (isinstance(data, tuple | list) and len(data) == 2):
        loads = isinstance(data, DataLoader)
        if isinstance(data, str) or not (loads or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))):
            raise ValueError(
                f"Test data must be a pair (x, y), a data set of pairs or a DataLoader; given {type(data).__name__}."
            )
        try:
            data = gathered(data, targets=True) if loads or len(data) else ()
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"Test data must be a pair (x, y) or a data set of pairs of tensors ({what}).") from error
    if not data or batch_size_of(tree_map(as_tensor, data[1])) == 0:
        raise ValueError("The test data are empty; give at least one example.")
    x, y = tree_map(as_tensor, tuple(data))
    if batch_size_of(x) != batch_size_of(y):
        raise ValueError(f"The test data have {batch_size_of(x)} inputs and {batch_size_of(y)} targets.")
    return x, y.cpu()


def prediction_of(source: Any, x: Any = None, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
    """The prediction of a run at x, in the memory of the host; that of a prediction is itself.

    Class probabilities (n, classes) are a prediction, a module is a classifier that returns logits. Neither separates
    aleatoric from epistemic uncertainty, so all of it counts as aleatoric.
    """
    if isinstance(source, ClassPrediction | ValuePrediction):
        return on_host(source)
    if isinstance(source, Predicts):
        return on_host(source.predict(x, batch_size=batch_size, samples=samples))
    if isinstance(source, Tensor | np.ndarray):
        probs = checked_probs(source)
        entropy = torch.special.entr(probs).sum(1)
        return ClassPrediction(probs=probs, entropy=entropy, aleatoric=entropy)
    if isinstance(source, nn.Module):
        return on_host(Ensemble.from_classifier(source).predict(x, batch_size=batch_size, samples=samples))
    raise ValueError(
        f"Give a run, a prediction (run.predict(x)), class probabilities (n, classes) or a module that returns logits; "
        f"given {type(source).__name__}."
    )


def class_prediction_of(source: Any, x: Any = None, *, batch_size: int = 1024) -> ClassPrediction:
    """`prediction_of`, for classification only."""
    prediction = prediction_of(source, x, batch_size=batch_size)
    if not isinstance(prediction, ClassPrediction):
        raise ValueError("This needs class predictions; these are values (regression).")
    return prediction


def full_prediction_of(source: Any, x: Any = None, *, batch_size: int = 1024) -> Prediction:
    """`prediction_of`; for regression with samples, so that densities are those of the mixture."""
    if isinstance(source, Ensemble):
        return on_host(source.predict(x, batch_size=batch_size, samples=not source.classifies))
    prediction = prediction_of(source, x, batch_size=batch_size)
    has_members = getattr(source, "has_members", not isinstance(source, ValuePrediction))
    if isinstance(prediction, ValuePrediction) and has_members:
        prediction = prediction_of(source, x, batch_size=batch_size, samples=True)
    return prediction

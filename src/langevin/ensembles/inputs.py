"""Inputs of predictions: tensors, data sets and DataLoaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, TensorDataset

from langevin.core.batches import batch_size_of, split_batch
from langevin.core.devices import as_tensor
from langevin.core.outputs import collated, plain_batch, refuse_frames


def checked_inputs(x: Any, batch_size: int, known: Any = None) -> Any:
    """The inputs as tensors; raises if there are none, or if this is one example without its batch dimension.

    Of data sets and DataLoaders whose items are (x, y) the inputs are taken. `known` describes the inputs of the run.
    """
    if not isinstance(x, Tensor):
        refuse_frames(x)
        x = plain_batch(gathered(x) if _yields_examples(x) else x)
    leaves = [x] if isinstance(x, Tensor) else tree_leaves(x)
    if batch_size < 1 or not leaves or not all(isinstance(leaf, Tensor | np.ndarray) for leaf in leaves):
        raise ValueError(
            f"predict takes inputs as a tensor, a tuple or dict of tensors, a data set or a DataLoader, and a "
            f"batch_size of 1 or more; given {type(x).__name__} and batch_size={batch_size}."
        )
    if not isinstance(x, Tensor):
        x = tree_map(as_tensor, x)
    described = [leaf["tensor"] for leaf in _leaves_of(known)]
    if len(described) == 1 and isinstance(x, tuple | list) and len(x) > 1:
        raise ValueError(
            f"predict takes the inputs alone, and this model takes one tensor; given a {type(x).__name__} of {len(x)}. "
            f"Of a pair (x, y) of inputs and targets write run.predict(x); lv.evaluate(run, (x, y)) takes both."
        )
    if len(described) == len(leaves) and any(
        leaf.ndim == len(one) - 1 for leaf, one in zip(leaves, described, strict=True)
    ):
        raise ValueError(
            f"x has the shape {tuple(leaves[0].shape)} of a single example; predict takes a batch of them. Write "
            f"run.predict(x[None])."
        )
    if any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("x is a single number; predict takes a batch of inputs. Write run.predict(x.reshape(1, 1)).")
    if batch_size_of(x) == 0:
        raise ValueError("There are no inputs to predict: x is empty.")
    return x


@contextmanager
def explained(x: Any, known: Any) -> Iterator[None]:
    """An error inside is said to be of the shapes of the inputs, if these are others than the run knows."""
    try:
        yield
    except RuntimeError as error:
        described = [(leaf["tensor"][0], tuple(leaf["tensor"][1:])) for leaf in _leaves_of(known)]
        given = [(str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:])) for leaf in tree_leaves(x)]
        if not described or described == given:
            raise
        raise ValueError(
            f"The model can't predict these inputs: an example is {_shown(given)}, and those of the training data were "
            f"{_shown(described)}. {type(error).__name__}: {error}"
        ) from error


def _shown(leaves: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} of shape {shape}" for dtype, shape in leaves)


def gathered(data: Any, *, targets: bool = False) -> Any:
    """All inputs of a data set or DataLoader, in their order; with `targets` the pair (inputs, targets)."""
    if isinstance(data, TensorDataset):
        items = data.tensors[0] if len(data.tensors) == 1 and not targets else data.tensors
        batches = [items]
    elif isinstance(data, DataLoader):
        batches = list(data)
    else:
        size = 1024
        batches = [
            collated([data[i] for i in range(start, min(start + size, len(data)))])
            for start in range(0, len(data), size)
        ]
    if not batches:
        raise ValueError("The data set is empty; give at least one example.")
    parts = [split_batch(batch) if targets else _inputs_of(batch) for batch in batches]
    return parts[0] if len(parts) == 1 else tree_map(lambda *rows: torch.cat([as_tensor(r) for r in rows]), *parts)


def _inputs_of(batch: Any) -> Any:
    """The inputs of a batch, which may have a target."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, tuple | list) and len(batch) == 1:
        return batch[0]
    if isinstance(batch, Mapping):
        try:
            return split_batch(batch)[0]
        except ValueError:  # a dict of inputs only
            return batch
    return split_batch(batch)[0]


def _yields_examples(x: Any) -> bool:
    if isinstance(x, DataLoader | TensorDataset):
        return True
    plain = isinstance(x, Tensor | np.ndarray | tuple | list | Mapping | str)
    return not plain and hasattr(x, "__getitem__") and hasattr(x, "__len__")


def _leaves_of(known: Any) -> list[Any]:
    """The descriptions of tensors in what `describe_inputs` wrote."""
    if not known:
        return []
    if isinstance(known, list):
        return [leaf for each in known for leaf in _leaves_of(each)]
    return [leaf for each in known["named"].values() for leaf in _leaves_of(each)] if "named" in known else [known]

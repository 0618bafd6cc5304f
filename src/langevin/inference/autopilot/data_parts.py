"""The parts of the data: to train on, to hold out, to watch predictions on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Subset

from langevin.core import random
from langevin.core.batches import Batch, Batches, DatasetBatches, LoaderBatches, TensorBatches
from langevin.core.random import Stream

_HELD_OUT = 0.15
_LARGEST_HELD_OUT = 5000
_FEWEST = 20  # examples below which none is held out
WATCHED = 1000  # at most


@dataclass(frozen=True)
class DataParts:
    """`training` as `lv.sample` takes data; `held_out` and `watched` are batches.

    Nothing is held out of a DataLoader, which can't be indexed, or of very few data: then `held_out` is None.
    """

    training: Any
    num_training: int
    held_out: Batch | None
    watched: Batch

    @classmethod
    def of(cls, data: Any, batches: Batches, seed: int, *, hold_out: bool = True) -> DataParts:
        """Split the data at random, as a function of the seed."""
        if isinstance(batches, LoaderBatches):
            watched = batches.peek()
            count = batches.num_data or 0
            return cls(data, count, None, tree_map(lambda t: t[:WATCHED], watched))
        count = batches.num_data or 0
        out = min(int(_HELD_OUT * count), _LARGEST_HELD_OUT) if hold_out and count >= _FEWEST else 0
        is_held = torch.zeros(count, dtype=torch.bool, device="cpu")
        if out:
            is_held[random.random_subset(count, out, seed=seed, chain=0, step=0, stream=Stream.SPLIT)] = True
        kept = torch.nonzero(~is_held).flatten()
        some = random.random_subset(len(kept), WATCHED, seed=seed, chain=0, step=1, stream=Stream.SPLIT)
        return cls(
            training=data if out == 0 else _subset(batches, kept),
            num_training=len(kept),
            held_out=batches.take(torch.nonzero(is_held).flatten()) if out else None,
            watched=batches.take(kept[some]),
        )


def _subset(batches: Batches, indices: Tensor) -> Any:
    if isinstance(batches, TensorBatches):
        return tree_map(lambda t: t.index_select(0, indices.to(batches.device)), (batches.x, batches.y))
    assert isinstance(batches, DatasetBatches)
    return Subset(batches.dataset, indices.tolist())

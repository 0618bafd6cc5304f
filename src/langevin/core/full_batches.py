"""The full batch: all data in every step, in their own order, in memory once, whatever the number of chains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, IterableDataset

from langevin.core.batches import Batch, Batches, TensorBatches, as_batches, seeded

_PIECE = 1024  # examples of a data set that are read at a time


class FullBatches(Batches):
    """All data as one batch, which all chains share."""

    def __init__(self, x: Any, y: Any, device: torch.device, fingerprint: dict[str, Any] | None = None) -> None:
        self._all = TensorBatches(x, y, len(tree_flatten(y)[0][0]), 0, device)
        self.num_data = self.batch_size = self._all.batch_size
        self._fingerprint = fingerprint or self._all.fingerprint()

    def fetch(self, chain: int, step: int) -> Batch:
        """All data; not a copy."""
        return self._all.x, self._all.y

    def take(self, indices: Tensor) -> Batch:
        """The examples with these indices."""
        return self._all.take(indices)

    def indices(self, chain: int, step: int) -> Tensor:
        """All."""
        return torch.arange(self.batch_size, device="cpu")

    def full_pass(self, size: int) -> Iterator[Batch]:
        """Slices."""
        return self._all.full_pass(size)

    def targets(self) -> Tensor | None:
        """All targets."""
        return self._all.targets()

    def fingerprint(self) -> dict[str, Any]:
        """That of the data set."""
        return self._fingerprint


def make_batches(data: Any, batch_size: int | str | None, seed: int, device: torch.device) -> Batches:
    """The source of batches: of all data, if batch_size is "full"; else see `as_batches`."""
    if isinstance(batch_size, str):
        if batch_size != "full":
            raise ValueError(f'batch_size={batch_size!r}: give an integer, or "full" for all data in every step.')
        return _all_of(data, seed, device)
    return as_batches(data, batch_size, seed, device)


def _all_of(data: Any, seed: int, device: torch.device) -> FullBatches:
    """Tensors as they are; a map-style data set is read once, into memory."""
    if isinstance(data, DataLoader | IterableDataset):
        raise ValueError(
            f'batch_size="full" needs data that can be indexed; given {type(data).__name__}. Pass the data set itself, '
            f"or tensors (x, y): lv.sample(posterior, loader.dataset, …)."
        )
    batches = as_batches(data, None, seed, device)
    if isinstance(batches, TensorBatches):
        return FullBatches(batches.x, batches.y, device)
    assert batches.num_data is not None
    first = torch.arange(min(batches.num_data, 64), device="cpu")
    readings = []
    for step in (0, 1):
        with seeded(seed, 0, step):
            readings.append(tree_flatten(batches.take(first))[0])
    if not all(torch.equal(a, b) for a, b in zip(*readings, strict=True)):
        raise ValueError(
            "The data set changes its examples at random (augmentation), so there is no full batch: the loss would not "
            "be a function of the weights. Leave the random transforms out, or use a mini-batch sampler, lv.SGHMC."
        )
    x, y = tree_map(lambda *parts: torch.cat(parts), *batches.full_pass(_PIECE))
    return FullBatches(x, y, device, batches.fingerprint())

"""Sources of mini-batches: tensors, map-style data sets, or a DataLoader.

Tensors and data sets are indexed here: the batch of step t of chain c is a fresh random subset, a pure function of
(seed, chain, t). A DataLoader has its own order; the global generators of torch, Python and numpy are re-seeded before
every batch, so that what it draws from them is a function of (seed, chain, step) as well.
"""

from __future__ import annotations

import hashlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from langevin.core import random as rng
from langevin.core.devices import as_tensor, home_of
from langevin.core.outputs import collated, plain_batch, refuse_frames

Batch = tuple[Any, Any]
GENERATORS = threading.RLock()  # held by the thread that draws from the global generators
_TARGET_NAMES = ("y", "label", "labels", "target", "targets")


def batch_size_of(y: Any) -> int:
    """The number of examples of a batch of targets (or inputs)."""
    while not isinstance(y, Tensor):
        y = next(iter(y.values())) if isinstance(y, Mapping) else y[0]
    return len(y)


class Batches(ABC):
    """A source of mini-batches (x, y)."""

    num_data: int | None  # None if unknown (an iterable data set)
    exact_resume = True

    @abstractmethod
    def fetch(self, chain: int, step: int) -> Batch:
        """The mini-batch of a step."""

    def peek(self) -> Batch:
        """The first mini-batch; it will be fetched again."""
        beginning, batch = self.position(), self.fetch(0, 0)
        self.rewind(0, 0, beginning)
        return batch

    def take(self, indices: Tensor) -> Batch:
        """The examples with these indices."""
        raise ValueError("A DataLoader can't be indexed; pass the data set itself, or tensors (x, y).")

    def indices(self, chain: int, step: int) -> Tensor | None:
        """Which examples are in the mini-batch of a step; None if unknown."""
        return None

    def fetch_stacked(self, chains: Sequence[int], step: int) -> Batch:
        """The mini-batches of several chains, stacked along a first axis."""
        return stack_batches([self.fetch(chain, step) for chain in chains])

    def fetch_part(self, chain: int, step: int, part: int, parts: int) -> tuple[Batch, float]:
        """Part number `part` of `parts` of the mini-batch of a step, and its fraction of the examples."""
        batch = self.fetch(chain, step)
        rows, share = _rows(batch_size_of(batch[1]), part, parts)
        x, y = tree_map(lambda t: t[rows], batch)
        return (x, y), share

    def full_pass(self, size: int) -> Iterator[Batch]:
        """All data once, in batches of up to `size`."""
        raise ValueError("A full pass needs tensors or a map-style data set, not a DataLoader; pass loader.dataset.")

    def rewind(self, chain: int, step: int, position: dict[str, Any]) -> None:  # noqa: B027
        """Prepare to fetch that step, at which `position()` returned `position`."""

    def position(self) -> dict[str, Any]:
        """The state that `rewind` needs to return to this point; empty if a batch is a function of its step."""
        return {}

    def targets(self) -> Tensor | None:
        """All targets, if they are in memory."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        """Identifies the data, JSON-serializable."""
        return {"num_data": self.num_data}


class TensorBatches(Batches):
    """Tensors in memory, indexed directly."""

    def __init__(self, x: Any, y: Any, batch_size: int, seed: int, device: torch.device) -> None:
        leaves = tree_flatten((x, y))[0]
        if len({len(leaf) for leaf in leaves}) != 1:
            raise ValueError(f"The tensors of a data set must have equal lengths; given {[len(t) for t in leaves]}.")
        self.num_data = len(leaves[0])
        self.batch_size, self.seed = batch_size, seed
        self.device = home_of(leaves, device)
        self.x, self.y = tree_map(lambda t: t.to(self.device), (x, y))

    def fetch(self, chain: int, step: int) -> Batch:
        """A fresh random subset."""
        return self.take(self.indices(chain, step))

    def fetch_stacked(self, chains: Sequence[int], step: int) -> Batch:
        """The mini-batches of several chains, stacked along a first axis."""
        return self.take(self.indices(chains, step))

    def fetch_part(self, chain: int, step: int, part: int, parts: int) -> tuple[Batch, float]:
        """Only the rows of that part are indexed."""
        indices = self.indices(chain, step)
        rows, share = _rows(len(indices), part, parts)
        return self.take(indices[rows]), share

    def targets(self) -> Tensor | None:
        """All targets."""
        return self.y if isinstance(self.y, Tensor) else None

    def fingerprint(self) -> dict[str, Any]:
        """The number of examples and a digest of all of them."""
        return {"num_data": self.num_data, "digest": tensor_digest(tree_flatten((self.x, self.y))[0])}

    def full_pass(self, size: int) -> Iterator[Batch]:
        """Slices."""
        assert self.num_data is not None
        for start in range(0, self.num_data, size):
            yield tree_map(lambda t, s=start: t[s : s + size], (self.x, self.y))

    def indices(self, chain: int | Sequence[int], step: int) -> Tensor:
        """The random subset, one of each chain."""
        assert self.num_data is not None
        where: Any = {"seed": self.seed, "chain": chain, "step": step, "device": self.device}
        return rng.random_subset(self.num_data, self.batch_size, **where)

    def take(self, indices: Tensor) -> Batch:
        """The examples with these indices."""
        flat = indices.to(self.device).reshape(-1)
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor) and indices.dim() == 1:
            return self.x.index_select(0, flat), self.y.index_select(0, flat)
        x, y = tree_map(lambda t: t.index_select(0, flat).view(*indices.shape, *t.shape[1:]), (self.x, self.y))
        return x, y


class DatasetBatches(Batches):
    """A map-style data set: `__len__` and `__getitem__`; `__getitems__` or `read_batch` are used if present.

    Its transforms may draw from the global generators, so these are seeded for every batch.
    """

    def __init__(self, dataset: Any, batch_size: int, seed: int) -> None:
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.num_data = len(dataset)

    def fetch(self, chain: int, step: int) -> Batch:
        """A fresh random subset, collated."""
        return self.fetch_part(chain, step, 0, 1)[0]

    def fetch_part(self, chain: int, step: int, part: int, parts: int) -> tuple[Batch, float]:
        """Only the examples of that part are loaded; the random transforms are seeded separately for each part."""
        indices = self.indices(chain, step)
        rows, share = _rows(len(indices), part, parts)
        with seeded(self.seed, chain, step, part):
            return self.take(indices[rows]), share

    def indices(self, chain: int, step: int) -> Tensor:
        """The random subset."""
        assert self.num_data is not None
        return rng.random_subset(self.num_data, self.batch_size, seed=self.seed, chain=chain, step=step)

    def full_pass(self, size: int) -> Iterator[Batch]:
        """In the order of the indices."""
        assert self.num_data is not None
        for indices in torch.split(torch.arange(self.num_data, device="cpu"), size):
            yield self.take(indices)

    def targets(self) -> Tensor | None:
        """The attribute `labels` or `targets` of the data set, if it is a tensor."""
        labels = getattr(self.dataset, "labels", getattr(self.dataset, "targets", None))
        return labels if isinstance(labels, Tensor) else None

    def take(self, indices: Tensor) -> Batch:
        """The examples with these indices, collated."""
        if hasattr(self.dataset, "read_batch"):
            return split_batch(self.dataset.read_batch(indices))
        several = getattr(self.dataset, "__getitems__", None)
        items = several(indices.tolist()) if several else [self.dataset[i] for i in indices.tolist()]
        return split_batch(collated(items))

    def fingerprint(self) -> dict[str, Any]:
        """The number of examples and, where they are available at once, a digest of their labels."""
        labels = self.targets()
        return {"num_data": self.num_data} | ({} if labels is None else {"digest": tensor_digest([labels])})


class LoaderBatches(Batches):
    """A DataLoader, one epoch after another.

    If the loader is stateful (`state_dict`, as in torchdata), its state is saved and restored. Otherwise the epoch is
    replayed with its seeds up to the saved step, which is exact if one of torch's own samplers determines the order.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed
        iterable = isinstance(loader.dataset, IterableDataset)
        self.num_data = None if iterable else _num_examples(loader)
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.exact_resume = self._stateful or (not iterable and _known_order(loader))
        self._iterator: Iterator[Any] | None = None
        self._epoch_start = 0

    def fingerprint(self) -> dict[str, Any]:
        """The number of examples, and the batches that they come in."""
        return {"num_data": self.num_data, "batch_size": self.loader.batch_size, "drop_last": self.loader.drop_last}

    def position(self) -> dict[str, Any]:
        """The step at which the current epoch started, and the state of a stateful loader."""
        own = {"loader": self.loader.state_dict()} if self._stateful else {}  # type: ignore[attr-defined]
        return {"epoch_start": self._epoch_start, **own}

    def rewind(self, chain: int, step: int, position: dict[str, Any]) -> None:
        """Return to the point of the epoch at which `position` was recorded."""
        self._iterator, self._epoch_start = None, position.get("epoch_start", step)
        if "loader" in position:
            self.loader.load_state_dict(position["loader"])  # type: ignore[attr-defined]
            self._iterator = iter(self.loader)
            return
        for passed in range(self._epoch_start, step):
            self.fetch(chain, passed)

    def fetch(self, chain: int, step: int) -> Batch:
        """The loader's next batch; starts a new epoch if it is exhausted."""
        with seeded(self.seed, chain, step):
            return self._next(chain, step)

    def _next(self, chain: int, step: int) -> Batch:
        for _ in range(2):
            if self._iterator is None:
                if self.loader.generator is not None:
                    self.loader.generator.manual_seed(rng.integer(seed=self.seed, chain=chain, step=step))
                self._iterator, self._epoch_start = iter(self.loader), step
            try:
                return split_batch(next(self._iterator))
            except StopIteration:
                self._iterator = None
        raise ValueError("The DataLoader yields no batch: its data set is empty, or too small for drop_last=True.")


def tensor_digest(tensors: Sequence[Tensor]) -> str:
    """A digest of the contents, dtypes and shapes of tensors, at about a gigabyte a second."""
    digest = hashlib.blake2b(digest_size=32)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for part in torch.split(tensor.detach().cpu().contiguous().view(-1), 1 << 24):  # a copy of all would not fit
            digest.update(part.view(torch.uint8).numpy().data if part.numel() else b"")
    return digest.hexdigest()


def as_batches(data: Any, batch_size: int | None, seed: int, device: torch.device) -> Batches:
    """The source of mini-batches for tensors, a data set or a DataLoader."""
    refuse_frames(data)
    if isinstance(data, DataLoader):
        if batch_size is not None:
            raise ValueError(f"A DataLoader has its own batch size; leave out batch_size={batch_size}.")
        return LoaderBatches(data, seed)
    if isinstance(data, IterableDataset):
        raise ValueError("An IterableDataset can't be indexed; wrap it: DataLoader(data, batch_size=128).")
    data = plain_batch(data.tensors if isinstance(data, TensorDataset) else data)
    if _all_arrays(data):
        x, y = split_batch(tree_map(as_tensor, data))
        return TensorBatches(x, y, _checked_size(batch_size, batch_size_of(y)), seed, device)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], list):
        raise ValueError(f"The targets are a list of {len(data[1])}; write torch.tensor(y).")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return DatasetBatches(data, _checked_size(batch_size, len(data)), seed)
    raise ValueError(
        f"data must be a pair of tensors (x, y), a map-style data set or a DataLoader; given {type(data).__name__}."
    )


def _all_arrays(data: Any) -> bool:
    """Whether these are the columns of a data set (a list of examples, by contrast, is a map-style data set)."""
    columns = data if isinstance(data, list) else tree_flatten(data)[0] if isinstance(data, tuple | Mapping) else []
    return len(columns) > 0 and all(isinstance(column, Tensor | np.ndarray) for column in columns)


def _checked_size(batch_size: int | None, num_data: int) -> int:
    if num_data == 0:
        raise ValueError("The data set is empty.")
    if batch_size is None:
        return min(128, num_data)
    if not (isinstance(batch_size, int) and 1 <= batch_size <= num_data):
        raise ValueError(
            f"batch_size={batch_size} does not fit a data set of {num_data} examples; "
            f"give an integer from 1 to {num_data} (that is the full batch)."
        )
    return batch_size


def split_batch(batch: Any) -> Batch:
    """Inputs and target of a batch: (x, y), (x₁, x₂, …, y), or a dict with the target under one of `_TARGET_NAMES`.

    The other entries of a dict are keyword arguments of the model; a single one is its only input.
    """
    batch = plain_batch(batch)
    if isinstance(batch, Mapping):
        names = [name for name in _TARGET_NAMES if name in batch]
        if len(names) != 1:
            raise ValueError(
                f"A batch that is a dict needs its target under one of {_TARGET_NAMES}; has {list(batch)}. Of a "
                f'Hugging Face data set: data.rename_column("…", "labels").'
            )
        inputs = {name: value for name, value in batch.items() if name != names[0]}
        return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), batch[names[0]]
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    raise ValueError(f"A batch is (inputs, target) or a dict: lv.sample(posterior, (x, y)); given {type(batch)}.")


def stack_batches(batches: Sequence[Batch]) -> Batch:
    """Mini-batches of several chains, stacked along a first axis."""
    x, y = tree_map(lambda *rows: torch.stack(rows), *batches)
    return x, y


def _rows(size: int, part: int, parts: int) -> tuple[slice, float]:
    """The rows of a batch that belong to a part, and their fraction of the batch."""
    start, stop = size * part // parts, size * (part + 1) // parts
    if size < parts:
        raise ValueError(
            f"A mini-batch of {size} examples can't be shared by {parts} processes; give batch_size={parts} or more, "
            f"or fewer processes along data."
        )
    return slice(start, stop), (stop - start) / size


@contextmanager
def seeded(seed: int, chain: int, step: int, part: int = 0) -> Iterator[None]:
    """Inside, the global generators of torch, Python and numpy are seeded for one step, or one part of its batch.

    They belong to the process: runs in other threads that need them wait.
    """
    number = rng.integer(seed=seed, chain=chain, step=step, block=part)
    with GENERATORS:
        rng.seed_generators(number)
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002  (transforms draw from the global generator)
        yield


def _num_examples(loader: DataLoader[Any]) -> int | None:
    """How many different examples the loader yields: those of its sampler, if it has a subset; None if not known."""
    sampler: Any = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, RandomSampler | SequentialSampler | DistributedSampler):
        return len(loader.dataset)  # type: ignore[arg-type]
    indices = getattr(sampler, "indices", None)
    return None if indices is None else len({int(index) for index in indices})


def _known_order(loader: DataLoader[Any]) -> bool:
    """Whether the loader's order depends only on generators that are re-seeded here."""
    batch_sampler = loader.batch_sampler
    if loader.persistent_workers or not (batch_sampler is None or type(batch_sampler) is BatchSampler):
        return False
    sampler = loader.sampler if batch_sampler is None else batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return sampler.generator is None or sampler.generator is loader.generator
    return type(sampler) is SequentialSampler


def describe_inputs(x: Any) -> Any:
    """dtype and shape of one input, JSON-serializable; nested like the tuple or dict of inputs."""
    if isinstance(x, Tensor):
        return {"tensor": [str(x.dtype).removeprefix("torch."), *x.shape[1:]]}
    if isinstance(x, Mapping):
        return {"named": {name: describe_inputs(value) for name, value in x.items()}}
    return [describe_inputs(value) for value in x]


def example_inputs(described: Any, count: int = 2) -> Any:
    """`count` inputs of zeros, of that dtype and shape."""
    if isinstance(described, list):
        return tuple(example_inputs(value, count) for value in described)
    if "named" in described:
        return {name: example_inputs(value, count) for name, value in described["named"].items()}
    dtype, *shape = described["tensor"]
    return torch.zeros(count, *shape, dtype=getattr(torch, dtype), device="cpu")

"""`SampleStore`: where samples and checkpoints go. The engine writes to one, runs and fits read from one.

The contract, which `tests/contract/test_store.py` holds the memory and the directory to:

- `add` keeps a sample of a chain at a step; a step that is kept already is not written again, so a chain that repeats
  itself from an earlier checkpoint changes nothing. With `keep_last` in the manifest only the last so many stay.
- After `flush` every added sample has a record. `records()` lists them chain after chain, in the order of steps; `read`
  gives back what `add` was given, in the same dtype, through the storage dtype `sample_dtype`.
- `write_checkpoint` replaces the checkpoints of some chains, `checkpoints` gives them back. A checkpoint never refers
  to memory that goes on changing, and `read` returns copies.
- A number that is not finite is refused by `add`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.core.parameters import all_finite
from langevin.errors import RunError
from langevin.storage.files import dtype_of
from langevin.storage.gaps import Gap


class Record(NamedTuple):
    """Where a sample is, and the statistics that were recorded with it."""

    chain: int
    step: int
    path: Path | None  # of its file; None in memory
    row: int
    stats: dict[str, float]


@dataclass(frozen=True)
class Checkpoint:
    """One chain at one step: its tensors by name, and the plain values beside them.

    At step 0 there are only weights (and the state of a data loader that has one): the stepper is as its constructor
    makes it.
    """

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class SampleStore(ABC):
    """Samples, checkpoints, and what does not change, under one manifest."""

    path: Path | None  # the directory; None in memory

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest
        self.corrupted: dict[Path, str] = {}  # files that could not be read, and why
        self.missing: list[Gap] = []  # samples that were saved and are not there

    @property
    @abstractmethod
    def name(self) -> str:
        """The directory, or that it is in memory: for messages."""

    @abstractmethod
    def writing(self, chains: Collection[int] | None = None) -> AbstractContextManager[None]:
        """Hold these chains (by default the whole run), so that no other process writes them."""

    @abstractmethod
    def write_manifest(self) -> None:
        """Keep the manifest as it stands."""

    @abstractmethod
    def write_fixed(self, tensors: Mapping[str, Tensor], name: str = "fixed") -> None:
        """Keep what is not sampled."""

    @abstractmethod
    def fixed(self, name: str = "fixed", largest: float | None = None) -> dict[str, Tensor]:
        """What is not sampled: frozen parameters and buffers; a file of more than `largest` bytes is refused."""

    @abstractmethod
    def add(self, chain: int, step: int, tensors: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
        """Keep a sample; it may be buffered until `flush`."""

    @abstractmethod
    def flush(self) -> None:
        """Let every buffered sample have its record."""

    @abstractmethod
    def records(self, chain: int | None = None) -> list[Record]:
        """The samples that are kept, chain after chain, each in the order of steps."""

    @abstractmethod
    def read_rows(self, records: list[Record]) -> dict[str, Tensor]:
        """The tensors of samples that follow one another (same path, successive rows), stacked along a first axis."""

    @abstractmethod
    def buffered(self) -> int:
        """How many samples wait in memory to be written."""

    @abstractmethod
    def write_checkpoint(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replace the checkpoint of these chains, which advance together; buffered samples are flushed first."""

    @abstractmethod
    def checkpoint_steps(self) -> dict[int, int]:
        """The step of the newest checkpoint of every chain."""

    @abstractmethod
    def checkpoints(self, chains: Iterable[int]) -> list[Checkpoint]:
        """The newest checkpoints of these chains."""

    @abstractmethod
    def drop_checkpoints(self, chains: Collection[int]) -> None:
        """Forget the checkpoints of these chains."""

    @abstractmethod
    def free_bytes(self) -> float:
        """The room that there is for samples."""

    def heartbeat(self, chains: Collection[int], step: int) -> None:  # noqa: B027
        """Tell others how far these chains are."""

    def refresh(self) -> None:  # noqa: B027
        """Look again at what others have written."""

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors of one sample."""
        return {name: rows[0] for name, rows in self.read_rows([record]).items()}

    def saved(self) -> int:
        """How many samples have a record, over all chains."""
        return len(self.records())

    def bytes_per_sample(self) -> int:
        """What one sample takes."""
        return sum(
            torch.empty(spec["shape"], dtype=self._stored_dtype(spec), device="meta").nbytes
            for spec in self.manifest["tensors"].values()
        )

    def _stored_dtype(self, spec: Mapping[str, Any]) -> torch.dtype:
        dtype, chosen = dtype_of(spec["dtype"]), self.manifest.get("sample_dtype")
        return dtype_of(chosen) if chosen and dtype.is_floating_point else dtype

    def _as_stored(self, name: str, tensor: Tensor, *, copy: bool = True) -> Tensor:
        """A copy in the storage dtype, checked to be finite; without `copy` the tensor itself, where that will do."""
        stored = tensor.detach().to("cpu", self._stored_dtype(self.manifest["tensors"][name]), copy=copy)
        if not all_finite(stored):
            if all_finite(tensor):
                raise RunError(
                    f"{name} has values beyond the range of {self.manifest['sample_dtype']}; leave out sample_dtype=…, "
                    f"or write sample_dtype=torch.bfloat16."
                )
            raise FloatingPointError(f"{name} has a value that is not finite")
        return stored

    def _as_given(self, name: str, stored: Tensor, *, copy: bool = False) -> Tensor:
        """In the precision of the parameter; in one pass over the memory, also if the sample is in another."""
        return stored.to(dtype_of(self.manifest["tensors"][name]["dtype"]), copy=copy)

    def _is_kept(self, kept: Collection[int], step: int) -> bool:
        """Whether a sample of that step is there, or was and had to give way to newer ones."""
        return step in kept or (len(kept) == self.manifest.get("keep_last") and step < min(kept))


def last_samples(records: Iterable[Record], keep_last: int | None) -> dict[int, Record]:
    """The records by step, in order; with `keep_last` the last so many."""
    by_step = {record.step: record for record in records}
    steps = sorted(by_step)
    return {step: by_step[step] for step in steps[-(keep_last or len(steps)) :]}


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Names, shapes and dtypes, as a manifest has them."""
    return {name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for name, t in tensors.items()}

"""Samples in memory: a run without a directory. Nothing is written to disk."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.errors import RunError
from langevin.storage.base import Checkpoint, Record, SampleStore, last_samples
from langevin.storage.files import free_memory


class _Kept(NamedTuple):
    record: Record
    tensors: dict[str, Tensor]


class MemoryStore(SampleStore):
    """A store that lives as long as the object."""

    path = None
    name = "memory"

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__(manifest)
        self._samples: dict[int, dict[int, _Kept]] = {}  # chain → step → sample, in the order of steps
        self._fixed: dict[str, dict[str, Tensor]] = {}
        self._checkpoints: dict[int, Checkpoint] = {}

    def writing(self, chains: Collection[int] | None = None) -> AbstractContextManager[None]:
        """Nobody else can."""
        return nullcontext()

    def write_manifest(self) -> None:
        """It is where it is."""

    def write_fixed(self, tensors: Mapping[str, Tensor], name: str = "fixed") -> None:
        """Keep copies."""
        self._fixed[name] = _copied(tensors)

    def fixed(self, name: str = "fixed", largest: float | None = None) -> dict[str, Tensor]:
        """What is not sampled."""
        if name not in self._fixed:
            raise RunError(f"The run in memory has no {name} tensors.")
        return self._fixed[name]

    def add(self, chain: int, step: int, tensors: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
        """Keep a copy of a sample."""
        kept = self._samples.setdefault(chain, {})
        if self._is_kept(kept, step):
            return
        stored = {name: self._as_stored(name, tensor) for name, tensor in tensors.items()}
        kept[step] = _Kept(Record(chain, step, None, step, dict(stats)), stored)
        last = last_samples((sample.record for sample in kept.values()), self.manifest.get("keep_last"))
        self._samples[chain] = {step: kept[step] for step in last}

    def flush(self) -> None:
        """Nothing is buffered."""

    def records(self, chain: int | None = None) -> list[Record]:
        """All samples, their rows being their places in their chain."""
        chains = sorted(self._samples) if chain is None else [chain]
        return [
            kept.record._replace(row=row) for c in chains for row, kept in enumerate(self._samples.get(c, {}).values())
        ]

    def read_rows(self, records: list[Record]) -> dict[str, Tensor]:
        """Stacked copies."""
        try:
            rows = [self._samples[record.chain][record.step].tensors for record in records]
        except KeyError:
            raise RunError(
                f"The sample of chain {records[0].chain} at step {records[0].step} does not exist any more: it was "
                f"replaced by newer samples (keep_last)."
            ) from None
        return {name: self._as_given(name, torch.stack([row[name] for row in rows])) for name in rows[0]}

    def saved(self) -> int:
        """How many samples there are, over all chains."""
        return sum(len(kept) for kept in self._samples.values())

    def buffered(self) -> int:
        """None."""
        return 0

    def write_checkpoint(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Keep copies."""
        self._checkpoints |= {chain: _copied_checkpoint(checkpoint) for chain, checkpoint in checkpoints.items()}

    def checkpoint_steps(self) -> dict[int, int]:
        """The step of every chain's checkpoint."""
        return {chain: checkpoint.step for chain, checkpoint in self._checkpoints.items()}

    def checkpoints(self, chains: Iterable[int]) -> list[Checkpoint]:
        """Copies, which a stepper may go on changing."""
        return [_copied_checkpoint(self._checkpoints[chain]) for chain in chains]

    def drop_checkpoints(self, chains: Collection[int]) -> None:
        """Forget them."""
        for chain in chains:
            self._checkpoints.pop(chain, None)

    def free_bytes(self) -> float:
        """Half of the memory that is free: the rest is for computing."""
        return free_memory() / 2


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _copied_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint(checkpoint.step, _copied(checkpoint.tensors), copy.deepcopy(checkpoint.values))


def copy_store(source: SampleStore, target: SampleStore, some: Sequence[Record] | None = None) -> None:
    """Write samples, fixed tensors and checkpoints of one store to another, the manifest last.

    With `some` records only those are written, and no checkpoint: a part of a run can't be continued.
    """
    with target.writing():
        target.write_fixed(source.fixed())
        for name in ("statistics", "control_variate", "warm_start", "starts"):
            with suppress(RunError):  # only some runs and fits have them
                target.write_fixed(source.fixed(name), name)
        for record in source.records() if some is None else some:
            target.add(record.chain, record.step, source.read(record), record.stats)
        target.flush()
        by_step: dict[int, list[int]] = {}
        for chain, step in source.checkpoint_steps().items() if some is None else ():
            by_step.setdefault(step, []).append(chain)
        for chains in by_step.values():
            target.write_checkpoint(dict(zip(chains, source.checkpoints(chains), strict=True)))
        target.write_manifest()

"""The run on disk.

    manifest.json                                  configuration, versions, seed, names and shapes
    fixed.safetensors                              what is not sampled (frozen parameters, buffers), once
    statistics.safetensors                         of a fit: the BatchNorm statistics of its draws
    samples/chain-0003/0000012000.safetensors      samples, several to a file, named after the step of the first
    checkpoints/0000-0003.safetensors              all that chains 0 to 3 need to go on
    writers/                                       who writes which chains (see `writers`)

Every file is written beside its place, flushed to the disk and renamed, so that a crash leaves the old one or the new
one, and carries a checksum and the run's identity. Samples are only ever added. A sample counts as kept once its file
is there. A file of samples says after which sample of its chain it comes, so that one that is missing is missed.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import torch
from torch import Tensor

from langevin.errors import CorruptedFileError, RunError
from langevin.storage import files as disk
from langevin.storage import locks as writers
from langevin.storage import manifest as manifests
from langevin.storage import samples as shards
from langevin.storage.files import decode, dtype_of, encode
from langevin.storage.files import write as _write
from langevin.storage.samples import FOREIGN, Record

__all__ = ["Checkpoint", "DirectoryStore", "Record", "RunError", "decode", "encode"]

_SHARD_BYTES = 1 << 20  # samples wait in memory until they fill this (and then take four times that for a moment)


@dataclass(frozen=True)
class Checkpoint:
    """One chain at one step: its tensors by name, and the plain values beside them."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass
class _Waiting:
    """The samples of one chain that are not on the disk yet."""

    steps: list[int] = field(default_factory=list)
    notes: list[dict[str, float]] = field(default_factory=list)
    tensors: list[dict[str, Tensor]] = field(default_factory=list)
    size: int = 0


class DirectoryStore:
    """Reads and writes a run's directory. Any number may read; a chain is written by the one process that holds it."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.damaged: dict[Path, str] = {}  # files that could not be read, and why
        self.missing: list[tuple[int, int, int]] = []  # (chain, a, b): samples between steps a and b are gone
        self._waiting: dict[int, _Waiting] = {}
        self._opened: tuple[Path, Any] | None = None
        self._checked: set[Path] = set()  # files whose checksum was right when they were first opened
        self._writer: writers.Writer | None = None
        self._records = self._index()

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any]) -> Self:
        """Begin a run in a directory that holds none. It is one once its manifest is written."""
        path = Path(path)
        if manifests.there(path):
            raise RunError(
                f"{path} already holds a run, which is never overwritten. Continue it with lv.resume({str(path)!r}, …) "
                f"or choose another directory: out={str(path) + '-2'!r}."
            )
        try:
            (path / "samples").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
            for left_over in (path / "checkpoints").glob("*.safetensors"):  # of a start that failed
                left_over.unlink()
        except OSError as error:
            raise RunError(f"out={str(path)!r} can't be made a directory for the run: {error.strerror}.") from None
        return cls(path, {"format": manifests.FORMAT, "run": uuid4().hex, **manifest})

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run that is there."""
        return cls(Path(path), manifests.read(Path(path)))

    def refresh(self) -> None:
        """Look again at what is on the disk."""
        self._records = self._index()

    def write_fixed(self, tensors: Mapping[str, Tensor], name: str = "fixed") -> None:
        """DirectoryStore what is not sampled."""
        _write(self.path / f"{name}.safetensors", disk.pack(tensors, {"run": self.manifest["run"]}))

    def write_manifest(self) -> None:
        """Write the manifest as it stands."""
        _write(manifests.file(self.path), manifests.text(self.manifest))

    @contextmanager
    def writing(self, chains: Collection[int] | None = None) -> Iterator[None]:
        """Hold these chains (by default the whole run), so that no other process writes them."""
        with writers.holding(self.path, chains) as self._writer:
            try:
                yield
            finally:
                self._writer = None

    def beat(self, chains: Collection[int], step: int) -> None:
        """Give a sign of life, every few seconds, from the process that writes."""
        if self._writer is not None:
            self._writer.beat(chains, step)

    # samples

    def add(self, chain: int, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, float]) -> None:
        """Keep a sample; it may wait in memory for others. One that is on the disk already (the run was resumed from
        an earlier checkpoint, and repeats itself exactly), or was there and had to give way, is not written again.
        """
        kept = self._records.get(chain, {})
        if step in kept or (len(kept) == self.manifest.get("keep_last") and step < min(kept)):
            return
        waiting = self._waiting.setdefault(chain, _Waiting())
        stored = {name: self._as_stored(name, tensor) for name, tensor in tensors.items()}
        waiting.steps.append(step)
        waiting.notes.append(dict(notes))
        waiting.tensors.append(stored)
        waiting.size += sum(tensor.nbytes for tensor in stored.values())
        if waiting.size >= _SHARD_BYTES:
            self._write_samples(chain)

    def flush(self) -> None:
        """Write every waiting sample to the disk."""
        for chain in list(self._waiting):
            self._write_samples(chain)

    def records(self, chain: int | None = None) -> list[Record]:
        """The samples that are kept, chain after chain, each in the order of steps."""
        if chain is not None:
            return list(self._records.get(chain, {}).values())
        return [record for c in sorted(self._records) for record in self._records[c].values()]

    def kept(self) -> int:
        """How many samples are kept, over all chains."""
        return sum(len(records) for records in self._records.values())

    def waiting(self) -> int:
        """How many samples wait in memory to be written."""
        return sum(len(waiting.steps) for waiting in self._waiting.values())

    def read(self, record: Record) -> dict[str, Tensor]:
        """The tensors of a sample, from a file whose checksum is looked at when it is first opened."""
        try:
            if self._opened is None or self._opened[0] != record.path:
                if record.path not in self._checked:
                    disk.check(record.path)
                    self._checked.add(record.path)
                self._opened = record.path, disk.open_tensors(record.path)
            file = self._opened[1]
            return {
                name: file.get_slice(name)[record.row].to(dtype_of(spec["dtype"]))
                for name, spec in self.manifest["tensors"].items()
            }
        except FileNotFoundError:
            raise RunError(
                f"{record.path} is not there any more: it was deleted, or gave way to newer samples (keep_last). Load "
                f"the run anew."
            ) from None
        except OSError as error:
            raise RunError(f"{record.path} can't be read: {error.strerror or error}.") from None
        except FOREIGN as error:
            raise RunError(
                f"{record.path} is damaged: {error}. `langevin verify {self.path} --set-aside` takes it and its like "
                f"out; the other samples are usable."
            ) from None

    def read_rows(self, records: list[Record]) -> dict[str, Tensor]:
        """The tensors of samples that follow one another in one file, stacked."""
        self.read(records[0])
        assert self._opened is not None
        file, rows = self._opened[1], slice(records[0].row, records[-1].row + 1)
        return {
            name: file.get_slice(name)[rows].to(dtype_of(spec["dtype"]))
            for name, spec in self.manifest["tensors"].items()
        }

    def fixed(self, name: str = "fixed") -> dict[str, Tensor]:
        """What is not sampled: frozen parameters and buffers."""
        path = self.path / f"{name}.safetensors"
        tensors, metadata = disk.read(path)
        if metadata.get("run") != self.manifest["run"]:
            raise RunError(f"{path} is of another run.")
        return tensors

    def bytes_per_sample(self) -> int:
        """What one sample takes on the disk."""
        return sum(
            torch.empty(spec["shape"], dtype=self._stored_dtype(spec), device="meta").nbytes
            for spec in self.manifest["tensors"].values()
        )

    # checkpoints

    def write_checkpoint(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replace the checkpoint of these chains, which advance together, by a new one; waiting samples go first."""
        self.flush()
        tensors = {f"{c}/{name}": t for c, checkpoint in checkpoints.items() for name, t in checkpoint.tensors.items()}
        values = {str(c): {"step": checkpoint.step, **checkpoint.values} for c, checkpoint in checkpoints.items()}
        try:
            chains = json.dumps(encode(values))
        except TypeError as error:
            raise RunError(
                f"The state of the sampler, of its schedule or of the data loader can't be written down: {error}. Use "
                f"one whose state is made of numbers, strings, tensors, lists and dicts."
            ) from None
        path = self.path / "checkpoints" / f"{_name(sorted(checkpoints))}.safetensors"
        _write(path, disk.pack(tensors, {"run": self.manifest["run"], "chains": chains}))

    def checkpoint_steps(self) -> dict[int, int]:
        """The step of the newest checkpoint of every chain."""
        return {chain: values["step"] for chain, (_, values) in self._newest_checkpoints().items()}

    def checkpoint(self, chain: int) -> Checkpoint:
        """The newest checkpoint of a chain."""
        path, values = self._newest_checkpoints()[chain]
        tensors, _ = disk.read(path, prefix=f"{chain}/")
        return Checkpoint(values.pop("step"), tensors, values)

    def drop_checkpoints(self, chains: Collection[int]) -> None:
        """Delete the files that hold checkpoints of these chains and of no other."""
        for path in self._checkpoint_files():
            if set(self._read_checkpoints(path)) <= set(chains):
                path.unlink(missing_ok=True)

    def _checkpoint_files(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("*.safetensors"))

    def _newest_checkpoints(self) -> dict[int, tuple[Path, dict[str, Any]]]:
        newest: dict[int, tuple[Path, dict[str, Any]]] = {}
        for path in self._checkpoint_files():
            for chain, values in self._read_checkpoints(path).items():
                if chain not in newest or newest[chain][1]["step"] < values["step"]:
                    newest[chain] = path, values
        return newest

    def _read_checkpoints(self, path: Path) -> dict[int, dict[str, Any]]:
        """The plain values of the checkpoints in a file, by chain."""
        try:
            with disk.open_tensors(path) as file:
                metadata = file.metadata() or {}
            if metadata["run"] != self.manifest["run"]:
                raise CorruptedFileError("it is of another run")
            found = {int(chain): values for chain, values in decode(disk.parse(metadata["chains"])).items()}
            if not all(type(values["step"]) is int and values["step"] >= 0 for values in found.values()):
                raise CorruptedFileError("its steps are no numbers")
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror or error}.") from None
        except (*FOREIGN, RecursionError) as error:
            raise RunError(f"{path} is not a checkpoint of this run: {error}.") from None
        return found

    # inside

    def _index(self) -> dict[int, dict[int, Record]]:
        """chain → step → record, in the order of steps."""
        try:
            index = shards.read_index(self.path, self.manifest)
        except OSError as error:
            raise RunError(f"The samples of {self.path} can't be read: {error.strerror or error}.") from None
        for path, why in index.damaged.items():
            if path not in self.damaged:
                warnings.warn(
                    f"{path} is damaged or foreign and is left out ({why}); the other samples are usable.", stacklevel=4
                )
        for chain, after, before in index.missing:
            if not index.damaged and (chain, after, before) not in self.missing:
                warnings.warn(
                    f"Samples of chain {chain} between the steps {after} and {before} are missing from {self.path}.",
                    stacklevel=4,
                )
        self.damaged, self.missing = index.damaged, index.missing
        return {chain: self._last(records) for chain, records in index.records.items()}

    def _write_samples(self, chain: int) -> None:
        waiting = self._waiting[chain]
        path = shards.place(self.path, chain, waiting.steps[0])
        stacked = {name: torch.stack([sample[name] for sample in waiting.tensors]) for name in waiting.tensors[0]}
        rows = [{"step": step, **notes} for step, notes in zip(waiting.steps, waiting.notes, strict=True)]
        before = self.records(chain)
        metadata = {
            "run": self.manifest["run"],
            "chain": json.dumps(chain),
            "after": json.dumps(
                max((record.step for record in before if record.step < waiting.steps[0]), default=None)
            ),
            "samples": json.dumps(rows),
        }
        _write(path, disk.pack(stacked, metadata))
        self._checked.add(path)
        new = [Record(chain, s, path, i, n) for i, (s, n) in enumerate(zip(waiting.steps, waiting.notes, strict=True))]
        del self._waiting[chain]
        self._records[chain] = self._last([*before, *new])
        in_use = {record.path for record in self._records[chain].values()}
        for path in {record.path for record in [*before, *new]} - in_use:
            path.unlink(missing_ok=True)

    def _last(self, records: list[Record]) -> dict[int, Record]:
        """The records by step, in order; with keep-last-K the last K."""
        by_step = {record.step: record for record in records}
        steps = sorted(by_step)
        keep_last = self.manifest.get("keep_last") or len(steps)
        return {step: by_step[step] for step in steps[-keep_last:]}

    def _stored_dtype(self, spec: Mapping[str, Any]) -> torch.dtype:
        dtype = dtype_of(spec["dtype"])
        return torch.float16 if self.manifest.get("float16") and dtype.is_floating_point else dtype

    def _as_stored(self, name: str, tensor: Tensor) -> Tensor:
        stored = tensor.detach().to("cpu", self._stored_dtype(self.manifest["tensors"][name]), copy=True)
        if stored.is_floating_point() and not bool(stored.isfinite().all()):
            if bool(tensor.isfinite().all()):
                raise RunError(f"{name} holds numbers beyond the range of float16; sample with float16=False.")
            raise FloatingPointError(f"{name} holds a number that is not finite")
        return stored


def _name(chains: list[int]) -> str:
    """A name for the checkpoint of these chains, different for different ones."""
    stretch = f"{chains[0]:04}-{chains[-1]:04}"
    gaps = len(chains) < chains[-1] - chains[0] + 1
    return f"{stretch}-{zlib.crc32(repr(chains).encode()):08x}" if gaps else stretch

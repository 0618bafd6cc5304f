"""A run on disk.

    manifest.json                                  configuration, versions, seed, names and shapes
    fixed.safetensors                              what is not sampled (frozen parameters, buffers), once
    statistics.safetensors                         of a fit: the BatchNorm statistics of its draws
    samples/chain-0003/0000012000.safetensors      samples, several to a file, named after the step of the first
    checkpoints/0000-0003.safetensors              all that chains 0 to 3 need to go on
    writers/                                       who writes which chains (see `locks`)

Every file is written beside its place, flushed to the disk and renamed, so that a crash leaves the old one or the new
one, and carries a checksum and the run's identity. Samples are only ever added. A sample counts as saved once its file
is there. A file of samples says after which sample of its chain it comes, so that a missing one is noticed.
"""

from __future__ import annotations

import copy
import json
import shutil
import warnings
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import torch
from torch import Tensor

from langevin.errors import CorruptedFileError, RunError
from langevin.storage import files, locks, new_run, sample_files
from langevin.storage import manifest as manifests
from langevin.storage.base import Checkpoint, Record, SampleStore, last_samples
from langevin.storage.sample_files import UNREADABLE

_FILE_BYTES = 1 << 20  # samples are buffered until they fill this (and then take four times that for a moment)


@dataclass
class _Buffer:
    """The samples of one chain that are not on disk yet."""

    steps: list[int] = field(default_factory=list)
    stats: list[dict[str, float]] = field(default_factory=list)
    tensors: list[dict[str, Tensor]] = field(default_factory=list)
    size: int = 0


class DirectoryStore(SampleStore):
    """Reads and writes a run's directory. Any number may read; a chain is written by the one process that holds it."""

    path: Path

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        super().__init__(manifest)
        self.path = path
        self._buffers: dict[int, _Buffer] = {}
        self._opened: tuple[Path, Any] | None = None
        self._verified: set[Path] = set()  # files whose checksum was right when they were first opened
        self._writer: locks.Writer | None = None
        self._is_new = False  # created, and not yet held for writing
        self._records = self._index()

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any]) -> Self:
        """Begin a run in a directory that contains none. It is one once its manifest is written."""
        path = Path(path)
        if manifests.exists(path):
            raise RunError(
                f"{path} contains a run already, which is never overwritten: continue it with lv.resume({str(path)!r}, "
                f"…) or choose another directory: out={str(path) + '-2'!r}."
            )
        try:
            new_run.check_directory(path)
            (path / "samples").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"out={str(path)!r} can't be made a directory for the run: {error.strerror}.") from None
        store = cls(path, {"format": manifests.FORMAT, "run": uuid4().hex, **copy.deepcopy(manifest)})
        store._is_new = True
        return store

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run that exists."""
        return cls(Path(path), manifests.read(Path(path)))

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.path)

    def refresh(self) -> None:
        """Look again at what is on disk."""
        self._records = self._index()

    def write_manifest(self) -> None:
        """Write the manifest as it stands."""
        files.write(manifests.file(self.path), manifests.text(self.manifest))

    @contextmanager
    def writing(self, chains: Collection[int] | None = None) -> Iterator[None]:
        """Hold these chains (by default the whole run), so that no other process writes them."""
        with locks.holding(self.path, chains) as self._writer:
            try:
                if self._is_new:  # what a failed start left is removed under the lock, when nobody else can be starting
                    new_run.claim_directory(self.path)
                    self._is_new = False
                yield
            finally:
                self._writer = None

    def heartbeat(self, chains: Collection[int], step: int) -> None:
        """Write a heartbeat, every few seconds, from the process that writes."""
        if self._writer is not None:
            self._writer.heartbeat(chains, step)

    # fixed tensors

    def write_fixed(self, tensors: Mapping[str, Tensor], name: str = "fixed") -> None:
        """Store what is not sampled."""
        files.write(self.path / f"{name}.safetensors", files.pack(tensors, {"run": self.manifest["run"]}))

    def fixed(self, name: str = "fixed") -> dict[str, Tensor]:
        """What is not sampled: frozen parameters and buffers."""
        path = self.path / f"{name}.safetensors"
        tensors, metadata = files.read(path)
        if metadata.get("run") != self.manifest["run"]:
            raise RunError(f"{path} is from another run.")
        return tensors

    def free_bytes(self) -> float:
        """What the disk has."""
        return shutil.disk_usage(self.path).free

    # samples

    def add(self, chain: int, step: int, tensors: Mapping[str, Tensor], stats: Mapping[str, float]) -> None:
        """Keep a sample; it may be buffered with others."""
        if self._is_kept(self._records.get(chain, {}), step):
            return
        buffered = self._buffers[chain].steps if chain in self._buffers else []
        if buffered and step <= buffered[-1] and step in buffered:
            return
        stored = {name: self._as_stored(name, tensor) for name, tensor in tensors.items()}
        buffer = self._buffers.setdefault(chain, _Buffer())
        buffer.steps.append(step)
        buffer.stats.append(dict(stats))
        buffer.tensors.append(stored)
        buffer.size += sum(tensor.nbytes for tensor in stored.values())
        if buffer.size >= _FILE_BYTES:
            self._write_samples(chain)

    def flush(self) -> None:
        """Write every buffered sample to disk."""
        for chain in list(self._buffers):
            self._write_samples(chain)

    def records(self, chain: int | None = None) -> list[Record]:
        """The samples that are saved, chain after chain, each in the order of steps."""
        if chain is not None:
            return list(self._records.get(chain, {}).values())
        return [record for c in sorted(self._records) for record in self._records[c].values()]

    def saved(self) -> int:
        """How many samples are on disk, over all chains."""
        return sum(len(records) for records in self._records.values())

    def buffered(self) -> int:
        """How many samples wait in memory to be written."""
        return sum(len(buffer.steps) for buffer in self._buffers.values())

    def read_rows(self, records: list[Record]) -> dict[str, Tensor]:
        """The tensors of samples that follow one another in one file, whose checksum is verified at first."""
        path, rows = records[0].path, slice(records[0].row, records[-1].row + 1)
        assert path is not None
        try:
            opened = self._opened
            if opened is None or opened[0] != path:
                if path not in self._verified:
                    files.check(path)
                    self._verified.add(path)
                opened = self._opened = path, files.open_tensors(path)
            found = {name: opened[1].get_slice(name)[rows] for name in self.manifest["tensors"]}
            return {name: self._as_given(name, tensor.clone()) for name, tensor in found.items()}  # not the mapped file
        except FileNotFoundError:
            raise RunError(
                f"{path} does not exist any more: it was deleted, or replaced by newer samples (keep_last). Load the "
                f"run again."
            ) from None
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror or error}.") from None
        except UNREADABLE as error:
            raise RunError(
                f"{path} is corrupted: {error}. `langevin verify {self.path} --quarantine` moves corrupted files out "
                f"of the way; the other samples are usable."
            ) from None

    def _write_samples(self, chain: int) -> None:
        buffer = self._buffers[chain]
        path = sample_files.path_of(self.path, chain, buffer.steps[0])
        stacked = {name: torch.stack([sample[name] for sample in buffer.tensors]) for name in buffer.tensors[0]}
        rows = [{"step": step, **stats} for step, stats in zip(buffer.steps, buffer.stats, strict=True)]
        before = self.records(chain)
        metadata = {
            "run": self.manifest["run"],
            "chain": json.dumps(chain),
            "after": json.dumps(max((record.step for record in before if record.step < buffer.steps[0]), default=None)),
            "samples": json.dumps(rows),
        }
        files.write(path, files.pack(stacked, metadata))
        self._verified.add(path)
        new = [
            Record(chain, s, path, i, stats)
            for i, (s, stats) in enumerate(zip(buffer.steps, buffer.stats, strict=True))
        ]
        del self._buffers[chain]
        self._records[chain] = last_samples([*before, *new], self.manifest.get("keep_last"))
        in_use = {record.path for record in self._records[chain].values()}
        for unused in {record.path for record in [*before, *new]} - in_use:
            assert unused is not None
            unused.unlink(missing_ok=True)

    def _index(self) -> dict[int, dict[int, Record]]:
        """chain → step → record, in the order of steps."""
        try:
            index = sample_files.read_index(self.path, self.manifest)
        except OSError as error:
            raise RunError(f"The samples of {self.path} can't be read: {error.strerror or error}.") from None
        for path, why in index.corrupted.items():
            if path not in self.corrupted:
                warnings.warn(
                    f"{path} is corrupted, or from another run, and is left out ({why}); the other samples are usable.",
                    stacklevel=4,
                )
        for chain, after, before in index.missing:
            if not index.corrupted and (chain, after, before) not in self.missing:
                warnings.warn(
                    f"Samples of chain {chain} between the steps {after} and {before} are missing from {self.path}.",
                    stacklevel=4,
                )
        self.corrupted, self.missing = index.corrupted, index.missing
        keep_last = self.manifest.get("keep_last")
        return {chain: last_samples(records, keep_last) for chain, records in index.records.items()}

    # checkpoints

    def write_checkpoint(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replace the checkpoint of these chains, which advance together, by a new one; buffered samples go first."""
        self.flush()
        tensors = {f"{c}/{name}": t for c, checkpoint in checkpoints.items() for name, t in checkpoint.tensors.items()}
        values = {str(c): {"step": checkpoint.step, **checkpoint.values} for c, checkpoint in checkpoints.items()}
        chains = files.serialized(values)
        path = self.path / "checkpoints" / f"{_file_name(sorted(checkpoints))}.safetensors"
        files.write(path, files.pack(tensors, {"run": self.manifest["run"], "chains": chains}))

    def checkpoint_steps(self) -> dict[int, int]:
        """The step of the newest checkpoint of every chain."""
        return {chain: values["step"] for chain, (_, values) in self._newest_checkpoints().items()}

    def checkpoints(self, chains: Iterable[int]) -> list[Checkpoint]:
        """The newest checkpoints of these chains; every file is read once."""
        newest, read = self._newest_checkpoints(), {}
        found = []
        for chain in chains:
            path, values = newest[chain]
            if path not in read:
                read[path] = _by_chain(files.read(path)[0])
            plain = {name: value for name, value in values.items() if name != "step"}
            found.append(Checkpoint(values["step"], read[path].get(chain, {}), plain))
        return found

    def drop_checkpoints(self, chains: Collection[int]) -> None:
        """Delete the files that contain checkpoints of these chains; those of others in them are written again."""
        for path in self._checkpoint_files():
            if set(chains).isdisjoint(inside := self._read_checkpoints(path)):
                continue
            newest = self._newest_checkpoints()
            others = [chain for chain in inside if chain not in chains and newest[chain][0] == path]
            if others:
                self.write_checkpoint(dict(zip(others, self.checkpoints(others), strict=True)))
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
            with files.open_tensors(path) as file:
                metadata = file.metadata() or {}
            if metadata["run"] != self.manifest["run"]:
                raise CorruptedFileError("it is from another run")
            found = {int(chain): values for chain, values in files.decode(files.parse(metadata["chains"])).items()}
            if not all(type(values["step"]) is int and values["step"] >= 0 for values in found.values()):
                raise CorruptedFileError("its steps are not numbers")
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror or error}.") from None
        except (*UNREADABLE, RecursionError) as error:
            raise RunError(f"{path} is not a checkpoint of this run: {error}.") from None
        return found


def _by_chain(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        chain, _, rest = name.partition("/")
        if chain.isdecimal():
            found.setdefault(int(chain), {})[rest] = tensor
    return found


def _file_name(chains: list[int]) -> str:
    """A name for the checkpoint of these chains, different for different ones."""
    stretch = f"{chains[0]:04}-{chains[-1]:04}"
    gaps = len(chains) < chains[-1] - chains[0] + 1
    return f"{stretch}-{zlib.crc32(repr(chains).encode()):08x}" if gaps else stretch

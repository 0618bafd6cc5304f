"""A run on disk.

    manifest.json                                  configuration, versions, seed, names and shapes
    fixed.safetensors                              what is not sampled (frozen parameters, buffers), once
    statistics.safetensors                         of a fit: the BatchNorm statistics of its draws
    control_variate.safetensors                    of a run with one: its point and the gradient there
    samples/chain-0003/0000012000.safetensors      samples, several to a file, named after the step of the first
    checkpoints/0000-0003.safetensors              all that chains 0 to 3 need to go on
    writers/                                       who writes which chains (see `locks`)

Every file is written beside its place, flushed to the disk and renamed, so that a crash leaves the old one or the new
one, and carries a checksum and the run's identity. Samples are only ever added. A sample counts as saved once its file
is there. What is missing is noticed (see `gaps`). What is written goes into the directory that was opened (see
`folders`), whatever its path leads to by then.
"""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import torch
from torch import Tensor

from langevin.errors import RunError
from langevin.storage import checkpoint_files, files, new_run, sample_files
from langevin.storage import manifest as manifests
from langevin.storage.base import Checkpoint, Record, SampleStore, last_samples
from langevin.storage.checkpoint_files import CheckpointHeader
from langevin.storage.folders import Folder, make_directory, version_of
from langevin.storage.gaps import Saved, saved_now
from langevin.storage.run_folder import RunFolder
from langevin.storage.sample_files import UNREADABLE

_FILE_BYTES = 1 << 20  # samples are buffered until they fill this


@dataclass
class _Buffer:
    """The samples of one chain that are not on disk yet."""

    steps: list[int] = field(default_factory=list)
    stats: list[dict[str, float]] = field(default_factory=list)
    tensors: list[dict[str, Tensor]] = field(default_factory=list)
    size: int = 0


class _Opened(NamedTuple):
    """A file of samples that is being read: it stays what it was, even if another takes its place."""

    path: Path
    file: Any
    steps: list[int]


class DirectoryStore(SampleStore):
    """Reads and writes a run's directory. Any number may read; a chain is written by the one process that holds it."""

    path: Path

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        super().__init__(manifest)
        self.path = path
        self._folder = RunFolder(path)
        self._buffers: dict[int, _Buffer] = {}
        self._opened: _Opened | None = None
        self._verified: dict[Path, tuple[tuple[int, ...], list[int]]] = {}  # version and steps of files that are intact
        self._is_new = False  # created, and not yet held for writing
        self._checkpoints: dict[int, CheckpointHeader] | None = None  # while nobody else can write any
        self._saved: dict[int, Saved] = {}
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
            make_directory(path)
            with Folder.open(path) as root:
                for name in ("samples", "checkpoints"):
                    with root.below(name):
                        pass
        except OSError as error:
            raise RunError(f"out={str(path)!r} can't be made a directory for the run: {error.strerror}.") from None
        described = {key: value for key, value in manifest.items() if key != "saved"}  # counts of the run it is from
        store = cls(path, {"format": manifests.FORMAT, "run": uuid4().hex, **copy.deepcopy(described)})
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
        """Write the manifest as it stands, with what chains have saved by now."""
        if self._saved:
            self.manifest["saved"] = {str(chain): list(saved) for chain, saved in self._saved.items()}
        self._folder.write(manifests.file(self.path), manifests.text(self.manifest))

    @contextmanager
    def writing(self, chains: Collection[int] | None = None) -> Iterator[None]:
        """Hold these chains (by default the whole run), so that no other process writes them."""
        with self._folder.holding(chains) as root:
            if self._is_new:  # what a failed start left is removed under the lock, when nobody else can be starting
                new_run.claim_directory(root)
                self._is_new = False
            elif manifests.run_of(self.path) not in (None, self.manifest["run"]):
                raise RunError(f"{self.path} contains another run by now; nothing was written to it.")
            try:
                yield
            finally:
                self._checkpoints = None

    def heartbeat(self, chains: Collection[int], step: int) -> None:
        """Write a heartbeat, every few seconds, from the process that writes."""
        if self._folder.writer is not None:
            self._folder.writer.heartbeat(chains, step)

    # fixed tensors

    def write_fixed(self, tensors: Mapping[str, Tensor], name: str = "fixed") -> None:
        """Store what is not sampled."""
        self._folder.write(self._fixed_file(name), files.tensors(tensors, {"run": self.manifest["run"]}))

    def fixed(self, name: str = "fixed", largest: float | None = None) -> dict[str, Tensor]:
        """What is not sampled: frozen parameters and buffers."""
        path = self._fixed_file(name)
        tensors, metadata = files.read(path, largest)
        if metadata.get("run") != self.manifest["run"]:
            raise RunError(f"{path} is from another run.")
        return tensors

    def fixed_shapes(self) -> dict[str, list[int]]:
        """The shapes of the fixed tensors, which are not read."""
        path = self._fixed_file("fixed")
        try:
            with files.open_tensors(path) as file:
                return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, *UNREADABLE) as error:
            raise RunError(f"{path} can't be read: {error}.") from None

    def _fixed_file(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

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
        at_once = not buffered and sum(tensor.nbytes for tensor in tensors.values()) >= _FILE_BYTES
        stored = {name: self._as_stored(name, tensor, copy=not at_once) for name, tensor in tensors.items()}
        buffer = self._buffers.setdefault(chain, _Buffer())
        buffer.steps.append(step)
        buffer.stats.append(dict(stats))
        buffer.tensors.append(stored)
        buffer.size += sum(tensor.nbytes for tensor in stored.values())
        try:
            if at_once or buffer.size >= _FILE_BYTES:
                self._write_samples(chain)
        finally:
            if at_once:
                self._buffers.pop(chain, None)  # the weights go on changing, so they can't be written later

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
        first = records[0]
        assert first.path is not None
        try:
            opened = self._opened
            if opened is None or opened.path != first.path:
                opened = self._opened = self._open(first.path)
            if opened.steps[first.row : first.row + len(records)] != [record.step for record in records]:
                raise FileNotFoundError  # the file that had them gave way to another
            rows = slice(first.row, first.row + len(records))
            with torch.device("cpu"):  # safetensors reads to torch's default device
                found = {name: opened.file.get_slice(name)[rows] for name in self.manifest["tensors"]}
            return {name: self._as_given(name, t, copy=True) for name, t in found.items()}  # not the mapped file
        except FileNotFoundError:
            raise RunError(
                f"{first.path} does not exist any more: it was deleted, or replaced by newer samples (keep_last). Load "
                f"the run again."
            ) from None
        except OSError as error:
            raise RunError(f"{first.path} can't be read: {error.strerror or error}.") from None
        except UNREADABLE as error:
            raise RunError(
                f"{first.path} is corrupted: {error}. `langevin verify {self.path} --quarantine` moves corrupted files "
                f"out of the way; the other samples are usable."
            ) from None

    def _open(self, path: Path) -> _Opened:
        """Open a file of samples, whose checksum is verified at first; anew, if another takes its place meanwhile."""
        while True:
            version = version_of(path)
            try:
                before, steps = self._verified.get(path, (None, []))
                if before != version:
                    files.check(path)
                    steps = [record.step for record in sample_files.read_header(path, self.manifest).records]
                opened = _Opened(path, files.open_tensors(path), steps)
            except UNREADABLE:
                if version_of(path) == version:
                    raise
                continue
            if version is not None and version_of(path) == version:
                self._verified[path] = version, steps
                return opened

    def _write_samples(self, chain: int) -> None:
        buffer = self._buffers[chain]
        path = sample_files.path_of(self.path, chain, buffer.steps[0])
        rows = [{"step": step, **stats} for step, stats in zip(buffer.steps, buffer.stats, strict=True)]
        before = self.records(chain)
        earlier = [record.step for record in before] + ([self._saved[chain].last] if chain in self._saved else [])
        metadata = {
            "run": self.manifest["run"],
            "chain": json.dumps(chain),
            "after": json.dumps(max((step for step in earlier if step < buffer.steps[0]), default=None)),
            "samples": json.dumps(rows),
        }
        stacked = {name: [sample[name] for sample in buffer.tensors] for name in buffer.tensors[0]}
        self._folder.write(path, files.tensors(stacked, metadata))
        new = [
            Record(chain, s, path, i, stats)
            for i, (s, stats) in enumerate(zip(buffer.steps, buffer.stats, strict=True))
        ]
        del self._buffers[chain]
        self._saved |= saved_now({chain: buffer.steps}, {c: s for c, s in self._saved.items() if c == chain})
        self._records[chain] = last_samples([*before, *new], self.manifest.get("keep_last"))
        in_use = {record.path for record in self._records[chain].values()}
        for unused in sorted({record.path for record in [*before, *new] if record.path} - in_use):  # the oldest first
            self._folder.unlink(unused)

    def _index(self) -> dict[int, dict[int, Record]]:
        """chain → step → record, in the order of steps."""
        try:
            index = sample_files.read_index(self.path, self.manifest, self._known_to_be_saved)
        except OSError as error:
            raise RunError(f"The samples of {self.path} can't be read: {error.strerror or error}.") from None
        for path, why in index.corrupted.items():
            if path not in self.corrupted:
                warnings.warn(
                    f"{path} is corrupted, or from another run, and is left out ({why}); the other samples are usable.",
                    stacklevel=5,
                )
        for gap in index.missing:
            if gap not in self.missing:
                warnings.warn(f"{str(gap).capitalize()} from {self.path}.", stacklevel=5)
        self.corrupted, self.missing, self._saved = index.corrupted, index.missing, index.saved
        keep_last = self.manifest.get("keep_last")
        return {chain: last_samples(records, keep_last) for chain, records in index.records.items()}

    def _known_to_be_saved(self) -> dict[int, Saved]:
        said = self.manifest.get("saved", {}).items()
        known = {int(chain): Saved(*saved) for chain, saved in said}
        for chain, saved in checkpoint_files.saved_by(self.path, self.manifest["run"]).items():
            known[chain] = max(saved, known.get(chain, saved), key=lambda saved: saved.last)
        return known

    # checkpoints

    def write_checkpoint(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replace the checkpoint of these chains, which advance together, by a new one; buffered samples go first."""
        self.flush()
        path = self.path / "checkpoints" / checkpoint_files.file_name(sorted(checkpoints))
        self._folder.write(path, checkpoint_files.content(self.manifest["run"], checkpoints, self._saved))
        if self._checkpoints is not None:
            for chain, checkpoint in checkpoints.items():
                values = files.decode(files.encode(checkpoint.values))
                self._checkpoints[chain] = CheckpointHeader(path, checkpoint.step, values, self._saved.get(chain))

    def checkpoint_steps(self) -> dict[int, int]:
        """The step of the newest checkpoint of every chain."""
        return {chain: header.step for chain, header in self._newest_checkpoints().items()}

    def checkpoints(self, chains: Iterable[int]) -> list[Checkpoint]:
        """The newest checkpoints of these chains; every file is read once."""
        newest, read = self._newest_checkpoints(), {}
        found = []
        for chain in chains:
            path, step, values, _ = newest[chain]
            if path not in read:
                read[path] = checkpoint_files.read_tensors(path)
            found.append(Checkpoint(step, read[path].get(chain, {}), copy.deepcopy(values)))
        return found

    def drop_checkpoints(self, chains: Collection[int]) -> None:
        """Delete the files that contain checkpoints of these chains; those of others in them are written again."""
        for path in checkpoint_files.files_of(self.path):
            if set(chains).isdisjoint(inside := checkpoint_files.read_headers(path, self.manifest["run"])):
                continue
            newest = self._newest_checkpoints()
            others = [chain for chain in inside if chain not in chains and newest[chain].path == path]
            if others:
                self.write_checkpoint(dict(zip(others, self.checkpoints(others), strict=True)))
            self._folder.unlink(path)
            self._checkpoints = None

    def _newest_checkpoints(self) -> dict[int, CheckpointHeader]:
        """The newest checkpoint of every chain; if samples are missing, one from which they can be drawn again.

        They are read once by a process that holds the run: nobody else can write its chains.
        """
        if self._checkpoints is not None:
            return self._checkpoints
        before: dict[int, int] = {}
        for gap in self.missing:
            before[gap.chain] = min(gap.after, before.get(gap.chain, gap.after))
        found = checkpoint_files.newest(self.path, self.manifest["run"], before)
        if self._folder.writer is not None:
            self._checkpoints = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        """For `pickle` and `copy.deepcopy`: another reader of the same directory."""
        if self._buffers:
            raise RunError(f"{self.path} has samples in memory that are not written yet; call flush() before copying.")
        return {**self.__dict__, "_opened": None, "_checkpoints": None}

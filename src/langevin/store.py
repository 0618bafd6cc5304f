"""The run on disk.

    manifest.json                                  configuration, versions, seed, names and shapes
    fixed.safetensors                              what is not sampled (frozen parameters, buffers), once
    samples/chain-0003/0000012000.safetensors      samples, several to a file, named after the step of the first
    checkpoints/0000-0003.safetensors              all that chains 0 to 3 need to go on
    lock                                           held by the process that writes

Every file is written beside its place, flushed to the disk and renamed, so that a crash leaves the old one or the new
one. Samples are only ever added. A sample counts as kept once its file is there. Nothing is unpickled, ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = 1
_SHARD_BYTES = 32 << 20  # samples wait in memory until they fill this or a checkpoint is due


class RunError(ValueError):
    """Something about a run's directory that the user has to decide or mend."""


class Record(NamedTuple):
    """Where a sample is, and what was noted with it."""

    chain: int
    step: int
    path: Path
    row: int
    notes: dict[str, float]


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


class Store:
    """Reads and writes a run's directory. Any number may read; one process, which holds the lock, writes."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.damaged: dict[Path, str] = {}  # files that could not be read, and why
        self._waiting: dict[int, _Waiting] = {}
        self._opened: tuple[Path, Any] | None = None
        self._records = self._index()

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any]) -> Self:
        """Begin a run in a directory that holds none. It is one once its manifest is written."""
        path = Path(path)
        if (path / "manifest.json").exists():
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
        return cls(path, {"format": FORMAT, **manifest})

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run that is there."""
        path = Path(path)
        try:
            manifest = json.loads((path / "manifest.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{path} holds no run (it has no manifest.json).") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path / 'manifest.json'} can't be read: {error}.") from None
        if not isinstance(manifest, dict) or not isinstance(manifest.get("tensors"), dict):
            raise RunError(f"{path / 'manifest.json'} is not the manifest of a run.")
        if manifest.get("format") != FORMAT:
            raise RunError(
                f"{path} was written in format {manifest.get('format')!r} by langevin "
                f"{manifest.get('environment', {}).get('langevin', '?')}; this version reads format {FORMAT}. "
                f"Open it with the version that wrote it."
            )
        return cls(path, manifest)

    def refresh(self) -> None:
        """Look again at what is on the disk."""
        self._records = self._index()

    def write_fixed(self, tensors: Mapping[str, Tensor]) -> None:
        """Store what is not sampled."""
        _write(self.path / "fixed.safetensors", save(_plain(tensors)))

    def write_manifest(self) -> None:
        """Write the manifest as it stands."""
        _write(self.path / "manifest.json", json.dumps(self.manifest, indent=2, ensure_ascii=False).encode())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock, so that no second process writes to this run."""
        with open(self.path / "lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise RunError(f"{self.path} is being written by {lock.read().strip() or 'another process'}.") from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            lock.flush()
            yield

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
        """The tensors of a sample."""
        if self._opened is None or self._opened[0] != record.path:
            try:
                self._opened = record.path, safe_open(record.path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise RunError(f"{record.path} can't be read: {error}.") from None
        shard = self._opened[1]
        return {
            name: shard.get_slice(name)[record.row].to(getattr(torch, spec["dtype"]))
            for name, spec in self.manifest["tensors"].items()
        }

    def read_rows(self, records: list[Record]) -> dict[str, Tensor]:
        """The tensors of samples that follow one another in one file, stacked."""
        self.read(records[0])
        assert self._opened is not None
        file, rows = self._opened[1], slice(records[0].row, records[-1].row + 1)
        return {
            name: file.get_slice(name)[rows].to(getattr(torch, spec["dtype"]))
            for name, spec in self.manifest["tensors"].items()
        }

    def fixed(self) -> dict[str, Tensor]:
        """What is not sampled: frozen parameters and buffers."""
        return _read(self.path / "fixed.safetensors")[0]

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
        path = self.path / "checkpoints" / f"{min(checkpoints):04}-{max(checkpoints):04}.safetensors"
        try:
            chains = json.dumps(encode(values))
        except TypeError as error:
            raise RunError(
                f"The state of the sampler, of its schedule or of the data loader can't be written down: {error}. Use "
                f"one whose state is made of numbers, strings, tensors, lists and dicts."
            ) from None
        _write(path, save(_plain(tensors), {"chains": chains}))

    def checkpoint_steps(self) -> dict[int, int]:
        """The step of the newest checkpoint of every chain."""
        return {chain: values["step"] for chain, (_, values) in self._newest_checkpoints().items()}

    def checkpoint(self, chain: int) -> Checkpoint:
        """The newest checkpoint of a chain."""
        path, values = self._newest_checkpoints()[chain]
        tensors, _ = _read(path, prefix=f"{chain}/")
        return Checkpoint(values.pop("step"), tensors, values)

    def _newest_checkpoints(self) -> dict[int, tuple[Path, dict[str, Any]]]:
        newest: dict[int, tuple[Path, dict[str, Any]]] = {}
        for path in sorted((self.path / "checkpoints").glob("*.safetensors")):
            try:
                header = _read(path, prefix="only the header")[1]
                for chain, values in decode(json.loads(header["chains"])).items():
                    if int(chain) not in newest or newest[int(chain)][1]["step"] < int(values["step"]):
                        newest[int(chain)] = path, values
            except (KeyError, ValueError, TypeError, AttributeError):
                raise RunError(f"{path} is not a checkpoint of a run.") from None
        return newest

    # inside

    def _index(self) -> dict[int, dict[int, Record]]:
        """chain → step → record, in the order of steps."""
        found: dict[int, list[Record]] = {}
        for path in sorted((self.path / "samples").glob("chain-*/*.safetensors")):
            try:
                chain, rows = self._read_header(path)
            except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
                self.damaged[path] = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"{path} is damaged or foreign and is left out ({error}); the other samples are usable.",
                    stacklevel=4,
                )
                continue
            found.setdefault(chain, []).extend(
                Record(chain, int(notes.pop("step")), path, row, notes) for row, notes in enumerate(rows)
            )
        return {chain: self._last(records) for chain, records in found.items()}

    def _read_header(self, path: Path) -> tuple[int, list[dict[str, float]]]:
        chain = int(path.parent.name.removeprefix("chain-"))
        with safe_open(path, framework="pt") as shard:
            metadata = shard.metadata() or {}
            rows = json.loads(metadata["samples"])
            if json.loads(metadata["chain"]) != chain:
                raise ValueError(f"it holds samples of chain {metadata['chain']}")
            shapes = {name: tuple(shard.get_slice(name).get_shape()) for name in shard.keys()}  # noqa: SIM118
        expected = {name: (len(rows), *spec["shape"]) for name, spec in self.manifest["tensors"].items()}
        if shapes != expected:
            raise ValueError("its tensors are not those of this run")
        return chain, rows

    def _write_samples(self, chain: int) -> None:
        waiting = self._waiting[chain]
        folder = self.path / "samples" / f"chain-{chain:04}"
        path = folder / f"{waiting.steps[0]:010}.safetensors"
        stacked = {name: torch.stack([sample[name] for sample in waiting.tensors]) for name in waiting.tensors[0]}
        rows = [{"step": step, **notes} for step, notes in zip(waiting.steps, waiting.notes, strict=True)]
        _write(path, save(_plain(stacked), {"chain": json.dumps(chain), "samples": json.dumps(rows)}))
        new = [Record(chain, s, path, i, n) for i, (s, n) in enumerate(zip(waiting.steps, waiting.notes, strict=True))]
        del self._waiting[chain]
        before = self.records(chain)
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
        dtype: torch.dtype = getattr(torch, spec["dtype"])
        return torch.float16 if self.manifest.get("float16") and dtype.is_floating_point else dtype

    def _as_stored(self, name: str, tensor: Tensor) -> Tensor:
        stored = tensor.detach().to("cpu", self._stored_dtype(self.manifest["tensors"][name]), copy=True)
        if stored.is_floating_point() and not bool(stored.isfinite().all()):
            if bool(tensor.isfinite().all()):
                raise RunError(f"{name} holds numbers beyond the range of float16; sample with float16=False.")
            raise FloatingPointError(f"{name} holds a number that is not finite")
        return stored


def encode(value: Any) -> Any:
    """Tensors, and dicts with keys that JSON lacks (the milestones of a schedule), as pairs; the rest as it is."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"of": type(value).__name__, "pairs": [[key, encode(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, Tensor):
        return {"of": "Tensor", "pairs": [[str(value.dtype).removeprefix("torch."), value.tolist()]]}
    return value


def decode(value: Any) -> Any:
    """The opposite of `encode`."""
    if isinstance(value, dict):
        if set(value) == {"of", "pairs"}:
            if value["of"] == "Tensor":
                ((dtype, numbers),) = value["pairs"]
                return torch.tensor(numbers, dtype=getattr(torch, dtype))
            pairs = {key: decode(item) for key, item in value["pairs"]}
            return Counter(pairs) if value["of"] == "Counter" else pairs
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _read(path: Path, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors whose names begin with `prefix`, without it, and the metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} can't be read: {error}.") from None


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. What was kept before is intact; make room, then "
            f"resume the run."
        ) from error
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

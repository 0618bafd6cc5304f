"""Who writes to a run: any number of processes, each chain held by one of them.

    lock                        held for a moment by whoever looks who is there
    writers/HOST-PID-N.lock     held (flock) by one writer as long as it lives; says who it is and which chains it has
    writers/HOST-PID-N.json     its heartbeat: steps, rate, time

The system lets go of the lock of a process that dies, however it dies.
"""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from langevin.errors import CorruptedFileError, RunError
from langevin.storage.files import parse
from langevin.storage.folders import Folder, listed, open_regular, read_bytes

_HEARTBEAT_SECONDS = 5.0
_PATIENCE = 2.0  # seconds; others look for milliseconds
_LARGEST = 16 << 20  # bytes of a heartbeat or a lock; a million chains need that
_numbers = itertools.count()
_held: set[int] = set()  # descriptors of locks, which processes forked from this one must not keep alive


def _forget_in_child() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a writer."""

    who: str
    chains: list[int] | None  # None: all
    alive: bool  # it holds its lock
    steps: dict[int, int]  # of the chains that it has moved
    rate: float  # steps a second of the chains that it moves together
    age: float  # seconds by the clock on the wall; below 0 if that was set back


@dataclass
class Writer:
    """This process, while it may write; a process that is forked from it may not."""

    root: Folder
    name: str
    who: dict[str, Any]
    _steps: dict[int, int] = field(default_factory=dict)
    _since: dict[int, tuple[float, int]] = field(default_factory=dict)
    _last: float = -1e9

    def heartbeat(self, chains: Collection[int], step: int) -> None:
        """Write how far these chains are, every few seconds; a disk that refuses is no reason to stop."""
        now = time.monotonic()
        if now - self._last < _HEARTBEAT_SECONDS or not self.is_mine():
            return
        self._last = now
        first = min(chains)
        begun, at = self._since.setdefault(first, (now, step))
        self._steps.update(dict.fromkeys(chains, step))
        rate = (step - at) / (now - begun) if now > begun else 0.0
        beat = {**self.who, "steps": self._steps, "rate": rate, "at": time.time()}
        with suppress(OSError), self.root.below("writers") as folder:
            folder.write(f"{self.name}.json", json.dumps(beat).encode(), sync=False)

    def is_mine(self) -> bool:
        """Whether this process is the one that writes."""
        return self.root.owner == os.getpid()


@contextmanager
def holding(path: Path, chains: Collection[int] | None = None) -> Iterator[Writer]:
    """Be the only writer of these chains (all of the run if None); refused by name if another is."""
    who = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "chains": None if chains is None else sorted(chains),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    try:
        root = Folder.open(path)
    except OSError as error:
        raise RunError(f"{path} can't be written to: {error.strerror or error}.") from None
    with root:
        writer = Writer(root, f"{who['host']}-{os.getpid()}-{next(_numbers)}", who)
        lock = _take(writer, chains)
        try:
            yield writer
        finally:
            if writer.is_mine():  # the lock of a forked process is its parent's
                with suppress(OSError), root.below("writers") as folder:
                    folder.unlink(f"{writer.name}.lock")
                _held.discard(lock)
                os.close(lock)


def _take(writer: Writer, chains: Collection[int] | None) -> int:
    """The descriptor of a lock of our own, unless somebody else holds one for these chains."""
    root = writer.root
    try:
        with root.below("writers") as folder, _locked(root.open_file("lock", os.O_RDWR | os.O_CREAT)):
            _refuse_if_held(folder, chains)
            lock = folder.open_file(f"{writer.name}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, json.dumps(writer.who).encode())
    except OSError as error:
        raise RunError(f"{root.path} can't be written to: {error.strerror or error}.") from None
    except CorruptedFileError as error:
        raise RunError(f"{root.path} can't be written to: its lock can't be taken, since {error}.") from None
    _held.add(lock)
    return lock


def heartbeats(path: Path) -> list[Heartbeat]:
    """The last heartbeats of all writers, the newest first; what can't be read is left out."""
    found, files = [], []
    with suppress(OSError):
        files = listed(path / "writers", ".json")
    for file in files:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            said = parse(read_bytes(file, _LARGEST))
            beat = Heartbeat(
                who=_name(said),
                chains=_chains(said),
                alive=_is_alive(file.with_suffix(".lock")),
                steps={int(chain): int(step) for chain, step in said["steps"].items()},
                rate=float(said["rate"]),
                age=time.time() - float(said["at"]),
            )
            found.append((float(said["at"]), beat))
    return [beat for _, beat in sorted(found, key=lambda pair: -pair[0])]


def _refuse_if_held(folder: Folder, chains: Collection[int] | None) -> None:
    for name in {name.removesuffix(".lock").removesuffix(".json") for name in folder.names() if "-" in name}:
        said = _said_by_holder(folder, f"{name}.lock")
        if said is None:  # of a process that has ended
            for left_over in (f"{name}.lock", f"{name}.json"):
                folder.unlink(left_over)
            continue
        try:
            theirs = _chains(said)
            common = theirs is None or chains is None or not set(theirs).isdisjoint(chains)
        except (TypeError, ValueError, AttributeError, KeyError):
            common = True  # it is held, and does not say what for
        if common:
            raise RunError(f"{folder.path.parent} is being written by {_name(said)}. Wait until that ends, or stop it.")


def _said_by_holder(folder: Folder, name: str) -> Any:
    """What a lock says that a living process holds; None if none does."""
    try:
        with open(folder.open_file(name, os.O_RDONLY), "rb") as lock:
            if not _is_held(lock):
                return None
            with suppress(ValueError):
                return parse(lock.read(_LARGEST)) or {}
            return {}
    except (FileNotFoundError, CorruptedFileError):
        return None


def _is_held(lock: BinaryIO) -> bool:
    """Whether a living process holds this lock; to look is to share it for a moment, which refuses nobody else."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True


def _is_alive(file: Path) -> bool:
    try:
        with open_regular(file) as lock:
            return _is_held(lock)
    except (FileNotFoundError, CorruptedFileError):
        return False


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _name(said: Any) -> str:
    if not isinstance(said, dict) or "process" not in said:
        return "another process"
    return f"process {said['process']} on {said.get('host')}"


def _chains(said: dict[str, Any]) -> list[int] | None:
    return None if said["chains"] is None else [int(chain) for chain in said["chains"]]

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
from typing import IO, Any

from langevin.errors import RunError
from langevin.storage.files import parse

_HEARTBEAT_SECONDS = 5.0
_PATIENCE = 2.0  # seconds; others look for milliseconds
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
    """This process, while it may write."""

    place: Path
    who: dict[str, Any]
    _steps: dict[int, int] = field(default_factory=dict)
    _since: dict[int, tuple[float, int]] = field(default_factory=dict)
    _last: float = -1e9

    def heartbeat(self, chains: Collection[int], step: int) -> None:
        """Write how far these chains are, every few seconds; a disk that refuses is no reason to stop."""
        now = time.monotonic()
        if now - self._last < _HEARTBEAT_SECONDS:
            return
        self._last = now
        first = min(chains)
        begun, at = self._since.setdefault(first, (now, step))
        self._steps.update(dict.fromkeys(chains, step))
        rate = (step - at) / (now - begun) if now > begun else 0.0
        beat = {**self.who, "steps": self._steps, "rate": rate, "at": time.time()}
        with suppress(OSError):
            beside = self.place.with_suffix(".new")
            beside.write_text(json.dumps(beat))
            os.replace(beside, self.place.with_suffix(".json"))


@contextmanager
def holding(path: Path, chains: Collection[int] | None = None) -> Iterator[Writer]:
    """Be the only writer of these chains (all of the run if None); refused by name if another is."""
    who = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "chains": None if chains is None else sorted(chains),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    folder = path / "writers"
    place = folder / f"{who['host']}-{os.getpid()}-{next(_numbers)}.lock"
    try:
        folder.mkdir(exist_ok=True)
        with _locked(open(path / "lock", "a")):
            _refuse_if_held(path, folder, chains)
            mine = open(place, "w")  # noqa: SIM115  (held until the end of the block below)
            fcntl.flock(mine, fcntl.LOCK_EX)
            mine.write(json.dumps(who))
            mine.flush()
    except OSError as error:
        raise RunError(f"{path} can't be written to: {error.strerror or error}.") from None
    with mine:
        _held.add(mine.fileno())
        try:
            yield Writer(place, who)
        finally:
            _held.discard(mine.fileno())
            with suppress(OSError):
                place.unlink()


def heartbeats(path: Path) -> list[Heartbeat]:
    """The last heartbeats of all writers, the newest first; what can't be read is left out."""
    found = []
    for file in (path / "writers").glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            said = parse(file.read_bytes())
            beat = Heartbeat(
                who=_name(said),
                chains=_chains(said),
                alive=_is_held(file.with_suffix(".lock")),
                steps={int(chain): int(step) for chain, step in said["steps"].items()},
                rate=float(said["rate"]),
                age=time.time() - float(said["at"]),
            )
            found.append((float(said["at"]), beat))
    return [beat for _, beat in sorted(found, key=lambda pair: -pair[0])]


def _refuse_if_held(path: Path, folder: Path, chains: Collection[int] | None) -> None:
    for file in {file.with_suffix(".lock") for file in folder.glob("*-*")}:
        if not _is_held(file):  # of a process that has ended
            for left_over in (file, file.with_suffix(".json"), file.with_suffix(".new")):
                left_over.unlink(missing_ok=True)
            continue
        said: Any = {}
        with suppress(OSError, ValueError):
            said = parse(file.read_bytes())
        try:
            theirs = _chains(said)
            common = theirs is None or chains is None or not set(theirs).isdisjoint(chains)
        except (TypeError, ValueError, AttributeError, KeyError):
            common = True  # it is held, and does not say what for
        if common:
            raise RunError(f"{path} is being written by {_name(said)}. Wait until that ends, or stop it.")


def _is_held(file: Path) -> bool:
    """Whether a living process holds this lock; to look is to share it for a moment, which refuses nobody else."""
    try:
        with open(file) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


@contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    with file:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield


def _name(said: Any) -> str:
    if not isinstance(said, dict) or "process" not in said:
        return "another process"
    return f"process {said['process']} on {said.get('host')}"


def _chains(said: dict[str, Any]) -> list[int] | None:
    return None if said["chains"] is None else [int(chain) for chain in said["chains"]]

"""Ctrl-C and SIGTERM between two steps, never within one; and what to write to go on."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

from langevin.core.progress import tqdm
from langevin.errors import RunError
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import copy_store


class Interrupt:
    """Inside, a signal is only noted, and the loop stops at the end of its step; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._signal = signal.SIGINT
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exception(self) -> BaseException:
        """What the signal would have raised."""
        return KeyboardInterrupt() if self._signal == signal.SIGINT else SystemExit(128 + self._signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested, self._signal = True, signal.Signals(number)


@contextmanager
def resumable_stages(store: SampleStore) -> Iterator[None]:
    """Inside are the stages of one run: what stops them is said of the run, not of the stage."""
    try:
        yield
    except (RunError, ValueError, FloatingPointError):  # that is no interruption
        raise
    except BaseException as error:
        stage = store.manifest.get("autopilot", {}).get("stage", "training of the members")
        say_stopped(f"Stopped in the stage {stage!r}; {where_to_resume(store)}.", error)
        raise


def say_stopped(message: str, error: BaseException) -> None:
    """Write it, and let the traceback of Ctrl-C end with it."""
    tqdm.write(message, sys.stderr)
    if isinstance(error, KeyboardInterrupt) and not error.args:
        error.args = (message,)


def where_to_resume(store: SampleStore) -> str:
    """Where an interrupted run is and the call that continues it; one in memory is written to a temporary directory."""
    if store.path is not None:
        command = "command" in store.manifest.get("tags", {})
        call = f"langevin resume {store.name}" if command else f"lv.resume({store.name!r}, posterior, data)"
        return f"resume from {store.name}: {call}"
    if not any(store.checkpoint_steps().values()) and not store.saved():
        instead = '; with out="runs/mine" it can be resumed in every stage' if "autopilot" in store.manifest else ""
        return f"no step was completed, so nothing was written{instead}"
    try:
        path = Path(tempfile.mkdtemp(prefix="langevin-"))
        copy_store(store, DirectoryStore.create(path, store.manifest))
    except Exception as error:
        return f"the run in memory could not be written to disk: {error}"
    return f"resume from {path}: lv.resume({str(path)!r}, posterior, data)"

"""Ctrl-C and SIGTERM between two steps, never within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


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

"""Compiled kernels, kept on disk: only the first process ever compiles.

The directory's name has a digest of this package's sources (Numba itself looks only at the file in which a function is
defined), so that an edit anywhere in it compiles anew.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

_quiet_for = 1.0  # seconds, after which a compilation is announced


def user_cache() -> Path:
    """Where the user's caches are: `LANGEVIN_CACHE`, else that of the operating system."""
    if given := os.environ.get("LANGEVIN_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "langevin"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "langevin"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "langevin"


@cache
def digest() -> str:
    """Of the sources of this package."""
    total = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:16]


@cache
def directory() -> Path | None:
    """Where compiled kernels are kept; None if nothing can be written there."""
    path = user_cache() / f"kernels-{digest()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError:
        return None


def jit(function: Callable[..., Any]) -> Any:
    """Compile at the first call with Numba, without the interpreter's lock, and keep the result.

    Without `fastmath`: it would optimize `isfinite` away, and bits would differ between machines.
    """
    import numba

    config: Any = numba.config

    where = directory()
    before, config.CACHE_DIR = config.CACHE_DIR, str(where or "")
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=where is not None)(function)
    finally:
        config.CACHE_DIR = before


@contextmanager
def announced(what: str, name: str) -> Iterator[None]:
    """Around the first call of a kernel: say that it is being compiled, if it is new and takes more than a second."""
    where = directory()
    mark = None if where is None else where / f"{name}-{os.environ.get('NUMBA_CPU_NAME') or 'host'}"
    if mark is not None and mark.exists():
        yield
        return
    kept = " and kept" if where is not None else f"; {user_cache()} is not writable, so it can't be kept"
    message = f"Compiling {what}, once per machine{kept} …"
    timer = threading.Timer(_quiet_for, lambda: print(message, file=sys.stderr, flush=True))
    timer.daemon = True
    start = time.monotonic()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if (seconds := time.monotonic() - start) > _quiet_for:
        print(f"… compiled in {seconds:.0f} s.", file=sys.stderr, flush=True)
    if mark is not None:
        with suppress(OSError):
            mark.touch()

"""Host synchronisations on a real GPU, as `simulated.synchronisations` counts them on the simulated one."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch


@contextmanager
def synchronisations() -> Any:
    """What `torch.cuda.set_sync_debug_mode` warns of."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def so_far() -> Counter[str]:
            return Counter(f"{w.filename}:{w.lineno}" for w in caught if "synchronizing CUDA" in str(w.message))

        found = SimpleNamespace(total=0, lines=Counter(), so_far=so_far)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found.lines = so_far()
            found.total = sum(found.lines.values())

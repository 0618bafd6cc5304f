"""Sums over members of p and of −p log p, in one pass; `kernels/probabilities.py` has the same in torch operations."""

from __future__ import annotations

import numpy as np

from langevin.kernels.cache import jit
from langevin.kernels.native_math import log

_SPAN = 512  # places whose sums stay in the first-level cache
_TINY = np.finfo(np.float64).tiny


@jit
def add(probs, total, entropies, start, stop):
    """Add p and −p log p of every row of `probs`, (members, places), to the sums of places from start to stop."""
    for first in range(start, stop, _SPAN):
        last = min(first + _SPAN, stop)
        sums, parts = total[first:last], entropies[first:last]
        for row in range(probs.shape[0]):
            some = probs[row, first:last]
            for i in range(len(some)):
                p = np.float64(some[i])
                sums[i] += p
                parts[i] -= p * log(max(p, _TINY))

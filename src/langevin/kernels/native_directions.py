"""The moves of `MCLMC` for all chains in one call: rows are chains, sums are in float64.

`samplers/mclmc.py` has the same in torch operations; `tests/kernels/test_directions.py` compares the two.
"""

from __future__ import annotations

import math

import numpy as np

from langevin.kernels.cache import jit


@jit
def kick_and_drift(u, theta, force, root, times, halves, change):
    """Kick each row of u along −A^{1/2} force for its time, add ΔK to `change`; then θ ← θ + half A^{1/2} u.

    `times` are cεN/T, `root` is A^{1/2}, or has no rows if that is 1. `half` is ½ε, or 0 without a drift.
    """
    d, scaled = u.shape[1], root.shape[0] > 0
    e = np.empty(d, np.float64)
    for c in range(u.shape[0]):
        square = 0.0
        for i in range(d):
            e[i] = force[c, i]
            if scaled:
                e[i] *= root[c, i]
            square += e[i] * e[i]
        norm = math.sqrt(square)
        inverse = -1 / max(norm, 1e-300)
        total = 0.0
        for i in range(d):
            e[i] *= inverse
            both = u[c, i] + e[i]
            total += both * both
        total /= 2  # 1 + a
        delta = times[c] * norm / (d - 1)
        zeta, rest = math.exp(-delta), -math.expm1(-delta)
        along, keep = rest * (1 + zeta + (total - 1) * rest), 2 * zeta
        square = 0.0
        for i in range(d):
            e[i] = keep * u[c, i] + along * e[i]
            square += e[i] * e[i]
        inverse, half = 1 / math.sqrt(square), halves[c]
        for i in range(d):
            u[c, i] = e[i] * inverse
            if half != 0:
                theta[c, i] += half * u[c, i] * (root[c, i] if scaled else 1.0)
        change[c] += (d - 1) * (delta - math.log(2.0) + math.log(total * rest * (1 + zeta) + 2 * zeta * zeta))


@jit
def refresh(u, z, spreads):
    """u ← normalize(u + ν z)."""
    for c in range(u.shape[0]):
        square, nu = 0.0, spreads[c]
        for i in range(u.shape[1]):
            u[c, i] += nu * z[c, i]
            square += np.float64(u[c, i]) * np.float64(u[c, i])
        inverse = 1 / math.sqrt(square)
        for i in range(u.shape[1]):
            u[c, i] *= inverse

"""The moves of `MCLMC`: kick, drift and refresh of a momentum that is a direction, for all chains, (chains, d).

In torch operations, and compiled for the CPU, which is the same to rounding (`kernels/native_directions.py`). Numbers
by chain are (chains, 1), in float64.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from langevin.kernels import updates
from langevin.kernels.cache import announced


def kick_and_drift(
    u: Tensor, theta: Tensor, g: Tensor, root: Tensor | None, time: Tensor, half: Tensor | None
) -> Tensor:
    """Kick u along −A^{1/2}g for a time cεN/T, then, unless `half` is None, θ ← θ + ½ε A^{1/2} u; ΔK of each chain."""
    if _native(u, theta, g):
        change = torch.zeros_like(time)
        none = u.new_empty(0, 0) if root is None else root
        arrays = (t.numpy() for t in (u, theta, g, none, time.view(-1), _or_zero(half, time).view(-1), change.view(-1)))
        _compiled(u.dtype).kick_and_drift(*arrays)
        return change
    force = g if root is None else root * g
    change = kick(u, force, time)
    if half is not None:
        theta.addcmul_(u if root is None else root * u, half.to(u))
    return change


def kick(u: Tensor, force: Tensor, time: Tensor) -> Tensor:
    """Turn u in place along e = −F/‖F‖; ΔK of each chain."""
    d = u.shape[1]
    norm = torch.linalg.vector_norm(force, dim=1, keepdim=True, dtype=torch.float64)
    e = force * (-1 / norm.clamp_min(1e-300)).to(force)
    delta = time * norm / (d - 1)
    zeta, rest = torch.exp(-delta), -torch.expm1(-delta)  # ζ, 1 − ζ
    total = torch.linalg.vector_norm(u + e, dim=1, keepdim=True, dtype=torch.float64).square() / 2  # 1 + a
    along = rest * (1 + zeta + (total - 1) * rest)
    normalize(u.mul_((2 * zeta).to(u)).addcmul_(e, along.to(u)))
    change: Tensor = (d - 1) * (delta - math.log(2) + torch.log(total * rest * (1 + zeta) + 2 * zeta.square()))
    return change


def refresh(u: Tensor, z: Tensor, nu: Tensor) -> None:
    """u ← normalize(u + ν z)."""
    if _native(u, z):
        _compiled(u.dtype).refresh(u.numpy(), z.numpy(), nu.view(-1).numpy())
    else:
        normalize(u.addcmul_(z, nu.to(u)))


def normalize(u: Tensor) -> Tensor:
    """In place, to length 1."""
    return u.div_(torch.linalg.vector_norm(u, dim=1, keepdim=True, dtype=torch.float64).to(u))


def _or_zero(half: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if half is None else half


def _native(*rows: Tensor) -> bool:
    return updates.enabled() and all(t.is_cpu and t.is_contiguous() for t in rows)


@cache
def _compiled(dtype: torch.dtype) -> Any:
    """The compiled moves for this precision."""
    with announced("the moves of MCLMC", f"directions-{str(dtype).removeprefix('torch.')}"):
        from langevin.kernels import native_directions

        u, numbers = torch.ones(1, 2, dtype=dtype, device="cpu"), torch.ones(1, dtype=torch.float64, device="cpu")
        rows = (u.numpy(), u.numpy(), u.numpy(), u.new_empty(0, 0).numpy())
        native_directions.kick_and_drift(*rows, numbers.numpy(), numbers.numpy(), numbers.numpy())
        native_directions.refresh(u.numpy(), u.numpy(), numbers.numpy())
    return native_directions

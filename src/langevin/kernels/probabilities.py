"""Sums over the members of an ensemble of their probabilities and entropies, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from langevin.kernels import updates
from langevin.kernels.cache import announced
from langevin.kernels.threads import each_piece

TINY = torch.finfo(torch.float64).tiny  # p log p is 0 at p = 0
_MANY = 1 << 9  # probabilities; fewer do not pay for loading Numba


def add_probabilities(probs: Tensor, total: Tensor, entropies: Tensor) -> None:
    """Add Σ p and −Σ p log p over members, (members, …), to sums of shape (…), place by place.

    The sums are dense; best they lie in memory as the probabilities of a member do: `torch.zeros_like`. Both are in
    float64, the precision of the mean's entropy, so that one member has no epistemic part.
    """
    if probs.is_cpu and probs.dtype in (torch.float32, torch.float64) and probs.numel() >= _MANY and updates.enabled():
        add = _compiled(probs.dtype)
        if not total.is_contiguous():  # as the sums lie in memory
            order = sorted(range(total.dim()), key=total.stride, reverse=True)
            probs = probs.permute(0, *(1 + axis for axis in order))
            total, entropies = total.permute(order), entropies.permute(order)
        rows = probs.reshape(len(probs), -1).contiguous().numpy()
        sums, parts = total.view(-1).numpy(), entropies.view(-1).numpy()
        each_piece(lambda start, stop: add(rows, sums, parts, start, stop), total.numel())
        return
    p = probs.double()
    total.add_(p.sum(0))
    entropies.sub_(p.clamp_min(TINY).log_().mul_(p).sum(0))


@cache
def _compiled(dtype: torch.dtype) -> Any:
    """The compiled sums for this precision."""
    with announced("the sums of predictions", f"probabilities-{str(dtype).removeprefix('torch.')}"):
        from langevin.kernels import native_probabilities

        sums = torch.zeros(1, dtype=torch.float64, device="cpu").numpy()
        one = torch.ones(1, 1, dtype=dtype, device="cpu").numpy()
        native_probabilities.add(one, sums, sums.copy(), 0, 1)
    return native_probabilities.add

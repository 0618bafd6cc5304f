"""The configurational temperature, to be compared with the target temperature T.

For any fixed point a, integration by parts gives E[(θ−a)·∇U] = dim·T under exp(−U/T). So, with g = ∇Û/N,

    T̂ = N·mean((θ−a)·g)/dim,     θ before the step, a near the mean of θ to keep the variance small.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.core.statistics import dot_of_difference


class Thermometer:
    """Measures N (θ−a)·g/dim of one chain, or of stacked ones along their first axis."""

    def __init__(self, params: Sequence[Tensor], num_data: int, stacked: bool) -> None:
        self.anchor = [p.detach().clone() for p in params]
        self.averaged = 0
        self._stacked = stacked
        chains = len(params[0]) if stacked else 1
        self._sizes = torch.tensor([p.numel() // chains for p in params], dtype=torch.float64)
        self._num_data = num_data

    @torch.no_grad()
    def average(self, params: Sequence[Tensor]) -> None:
        """Move the anchor a to the mean of all positions so far."""
        self.averaged += 1
        torch._foreach_lerp_(self.anchor, [p.detach() for p in params], 1 / self.averaged)

    @torch.no_grad()
    def measure_each(self, params: Sequence[Tensor]) -> Tensor:
        """Current T̂ⱼ = N (θⱼ−aⱼ)·gⱼ/dimⱼ of every tensor j and chain, with gradients from `p.grad`.

        Integration by parts holds in every coordinate, so each T̂ⱼ is T on average. Tensors at different temperatures
        show what a mean over all weights hides.
        """
        rows = []
        for p, a in zip(params, self.anchor, strict=True):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            rows.append(dot_of_difference(p, a, gradient, len(p) if self._stacked else 1))
        return torch.stack(rows).cpu() * self._num_data / self._sizes[:, None]

    def measure(self, params: Sequence[Tensor]) -> Tensor:
        """Current T̂ of every chain, with gradients from `p.grad`."""
        return self.over_all(self.measure_each(params))

    def over_all(self, each: Tensor) -> Tensor:
        """The mean over all weights of the result of `measure_each`: one number per chain."""
        return (self._sizes / self._sizes.sum()) @ each

"""Stochastic gradient descent (Robbins & Monro 1951): the baseline, with the interface of a sampler.

    v ← momentum·v + g,    θ ← θ − ε v                                                    lr = ε

Target: none; it converges to an optimum if the rate decreases.

Noise: none is injected, and there is no `temperature`; the mini-batch noise contributes variance ε²Var(g) per step,
independent of N.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core.numbers import add_each
from langevin.samplers.base import SAMPLERS, Group, Normals, Sampler


@SAMPLERS.register
class SGD(Sampler):
    """Plain SGD with momentum, equal to `torch.optim.SGD(lr=lr, momentum=momentum)`: a point estimate.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        momentum: the fraction of v that remains after a step, in [0, 1).
        seed: not used, since no noise is injected.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    target = "none"
    order = None
    injects_noise = False
    citation: ClassVar[str] = """@article{robbins1951stochastic,
  title={A stochastic approximation method}, author={Robbins, Herbert and Monro, Sutton},
  journal={The Annals of Mathematical Statistics}, volume={22}, number={3}, pages={400--407}, year={1951}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        momentum: float = 0.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1); given momentum={momentum}. Try momentum=0.9.")
        super().__init__(params, lr=lr, num_data=num_data, seed=seed, chain=chain, momentum=momentum)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """v ← momentum·v + g;  θ ← θ − ε v."""
        if group["momentum"] > 0:
            velocity = self.zeros_at_first("velocity", params)
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, grads)
            grads = velocity
        add_each(params, grads, -group["lr"])

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(params, lr=group["lr"], momentum=group["momentum"])

    def stability_limit(self, curvature: float) -> float:
        """2(1 + momentum)/λ."""
        return 2 * (1 + float(self.param_groups[0]["momentum"])) / curvature

    def gradient_noise_temperature(self, variance: float) -> float:
        """ε N Var(g) / (2(1 − momentum)): the temperature of constant-rate SGD along a flat direction."""
        group = self.param_groups[0]
        return float(group["lr"] * group["num_data"] * variance / (2 * (1 - group["momentum"])))

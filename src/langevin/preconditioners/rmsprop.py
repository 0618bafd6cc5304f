"""The diagonal of RMSprop: A = diag(1/(λ + √V)), V the bias-corrected moving average of g⊙g, updated before use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.kernels.updates import Kernel
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked, new_weight


@PRECONDITIONERS.register
class RMSprop(Preconditioner):
    """A diagonal A: larger steps for weights with small gradients.

    Args:
        alpha: weight of the previous V in its moving average.
        eps: λ, which bounds A by 1/λ.
        noise_power: the noise is A to this power times η; only 0.5 samples the posterior.
        warmup: steps in which lr rises from 0, while V is learnt; 0 for none.
    """

    elementwise = True

    def __init__(self, alpha: float = 0.99, eps: float = 1e-5, *, noise_power: float = 0.5, warmup: int = 50) -> None:
        self.alpha, self.eps, self.noise_power, self.warmup = alpha, eps, noise_power, warmup
        checked(
            self,
            alpha=(alpha, 0 <= alpha < 1, "in [0, 1), such as 0.99"),
            eps=(eps, eps > 0, "positive: 1e-5"),
            warmup=(warmup, warmup >= 0, "0 or more, such as 50"),
        )

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """V ← V + w (g⊙g − V), w = (1−α)/(1−αⁿ) in the n-th update."""
        for p in params:
            if "square" not in state[p]:
                state[p]["square"] = torch.zeros_like(p)
            state[p]["updates"] = state[p].get("updates", 0) + 1
        for count in sorted({state[p]["updates"] for p in params}):  # one, unless some had no gradient at first
            members = [i for i, p in enumerate(params) if state[p]["updates"] == count]
            squares, g = [state[params[i]]["square"] for i in members], [grads[i] for i in members]
            weight = new_weight(self.alpha, count)
            torch._foreach_mul_(squares, 1 - weight)
            torch._foreach_addcmul_(squares, g, g, value=weight)

    def pace(self, state: State, params: list[Tensor]) -> float:
        """n/warmup in the n-th step, at most 1."""
        updates = [state[p]["updates"] for p in params if p in state]
        return min(1.0, min(updates, default=0) / self.warmup) if self.warmup else 1.0

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """g/(λ + √V)."""
        return [g / (state[p]["square"].sqrt() + self.eps) for p, g in zip(params, grads, strict=True)]

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """η/(λ + √V)^noise_power: the root of the drift's matrix at ½."""
        scales = [(state[p]["square"].sqrt() + self.eps) ** self.noise_power for p in params]
        return [eta / scale for eta, scale in zip(normals, scales, strict=True)]

    def kernel(self, state: State, group: Group, params: list[Tensor], *, rate: float, spread: float) -> Kernel | None:
        """V and θ in one pass; once frozen, V stays. None while parameters differ in the number of their updates."""
        counts = {state[p].get("updates", 0) if p in state else 0 for p in params}
        if self.noise_power != 0.5 or len(counts) != 1:
            return None
        if group["frozen"]:
            return Kernel("rmsprop", (rate, spread, 1.0, 0.0, self.eps), ("square",))
        count = counts.pop() + 1
        weight, pace = new_weight(self.alpha, count), min(1.0, count / self.warmup) if self.warmup else 1.0
        settings = (rate * pace, spread * math.sqrt(pace), 1 - weight, weight, self.eps)
        return Kernel("rmsprop", settings, ("square",), counter="updates")

    def stability_limit(self, curvature: float, group: Group) -> float:
        """2√(T/(Nλ)): near a minimum √V is the typical gradient, √(λT/N)."""
        return 2 * math.sqrt(max(group.get("temperature", 0.0), 1e-12) / (group["num_data"] * curvature))

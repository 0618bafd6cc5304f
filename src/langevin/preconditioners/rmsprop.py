"""The diagonal of RMSprop: A = diag(1/(λ + √V)), V ← αV + (1−α) g⊙g before use, from V = 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.kernels.updates import Kernel
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked


@PRECONDITIONERS.register
class RMSprop(Preconditioner):
    """A diagonal A: larger steps for weights with small gradients.

    Args:
        alpha: weight of the previous V in its moving average.
        eps: λ, which bounds A by 1/λ.
        noise_power: the noise is A to this power times η; only 0.5 samples the posterior.
    """

    elementwise = True

    def __init__(self, alpha: float = 0.99, eps: float = 1e-5, *, noise_power: float = 0.5) -> None:
        self.alpha, self.eps, self.noise_power = alpha, eps, noise_power
        checked(self, alpha=(alpha, 0 <= alpha < 1, "in [0, 1), such as 0.99"), eps=(eps, eps > 0, "positive: 1e-5"))

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """V ← αV + (1−α) g⊙g."""
        for p in params:
            if "square" not in state[p]:
                state[p]["square"] = torch.zeros_like(p)
        squares = [state[p]["square"] for p in params]
        torch._foreach_mul_(squares, self.alpha)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - self.alpha)

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """g/(λ + √V)."""
        return [g / (state[p]["square"].sqrt() + self.eps) for p, g in zip(params, grads, strict=True)]

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """η/(λ + √V)^noise_power: the root of the drift's matrix at ½."""
        scales = [(state[p]["square"].sqrt() + self.eps) ** self.noise_power for p in params]
        return [eta / scale for eta, scale in zip(normals, scales, strict=True)]

    def kernel(self, state: State, group: Group, params: list[Tensor], *, rate: float, spread: float) -> Kernel | None:
        """V and θ in one pass; once frozen, V stays."""
        if self.noise_power != 0.5:
            return None
        alpha = 1.0 if group["frozen"] else self.alpha
        return Kernel("rmsprop", (rate, spread, alpha, 1 - alpha, self.eps, 1.0), ("square",))

    def stability_limit(self, curvature: float, group: Group) -> float:
        """2√(T/(Nλ)): near a minimum √V is the typical gradient, √(λT/N)."""
        return 2 * math.sqrt(max(group.get("temperature", 0.0), 1e-12) / (group["num_data"] * curvature))

"""RMSprop's diagonal: A = diag(1/(λ + √V)), V ← αV + (1−α) g⊙g before use, from V = 0."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.pieces import Pieces
from langevin.preconditioners.base import Group, Preconditioner, State, checked


class RMSprop(Preconditioner):
    """Large steps for the weights whose gradients are small.

    Args:
        alpha: weight of the old V in its moving average.
        eps: λ, which bounds A by 1/λ.
        noise_power: the noise is A to this power times η; only 0.5 goes with the drift.
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
        for square, g in Pieces.batches([[state[p]["square"] for p in params], grads]):
            torch._foreach_mul_(square, self.alpha)
            torch._foreach_addcmul_(square, g, g, value=1 - self.alpha)

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """g/(λ + √V)."""
        return [g / (state[p]["square"].sqrt() + self.eps) for p, g in zip(params, grads, strict=True)]

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """η/(λ + √V)^noise_power: the root of the drift's matrix at ½."""
        scales = [(state[p]["square"].sqrt() + self.eps) ** self.noise_power for p in params]
        return [eta / scale for eta, scale in zip(normals, scales, strict=True)]

    def move(
        self,
        state: State,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        normals: list[Tensor] | None,
        rate: float,
        spread: float,
    ) -> None:
        """θ ← θ − rate g/(λ + √V) + spread η/(λ + √V)^noise_power, piece by piece."""
        squares = [state[p]["square"] for p in params]
        lists = [params, squares, grads] if normals is None else [params, squares, grads, normals]
        for theta, square, g, *eta in Pieces.batches(lists):
            scale = torch._foreach_sqrt(square)
            torch._foreach_add_(scale, self.eps)
            torch._foreach_addcdiv_(theta, g, scale, value=-rate)
            if eta:
                torch._foreach_pow_(scale, self.noise_power)
                torch._foreach_addcdiv_(theta, eta[0], scale, value=spread)

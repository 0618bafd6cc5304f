"""A torch optimizer with the face of a sampler, so that the loop which draws samples also minimizes.

    θ ← whatever the optimizer does with g = ∇(loss)                                      lr = the optimizer's own

Target: none; it converges to an optimum if the rate decreases. No noise is injected: N, T and seed do not enter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.samplers.base import Group, Normals, Sampler


class Descent(Sampler):
    """The steps of `optimizer(params)`, whose parameter groups and state it shares."""

    elementwise = False
    injects_noise = False

    def __init__(
        self,
        params: Iterable[Any],
        optimizer: Callable[..., Optimizer],
        *,
        num_data: int,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if isinstance(optimizer, Optimizer) or not callable(optimizer):
            raise ValueError(
                "Give the optimizer's class with its options, not an object: "
                "optimizer=partial(torch.optim.Adam, lr=1e-3)."
            )
        self._optimizer = optimizer(list(params))
        if not isinstance(self._optimizer, Optimizer) or isinstance(self._optimizer, Sampler | torch.optim.LBFGS):
            raise ValueError(
                f"{type(self._optimizer).__name__} can't fit by mini-batches; write "
                f"optimizer=partial(torch.optim.Adam, lr=1e-3). Samplers are for lv.sample, LBFGS for lv.find_map."
            )
        Optimizer.__init__(self, self._optimizer.param_groups, self._optimizer.defaults)
        self.state = self._optimizer.state

    def add_param_group(self, param_group: Group) -> None:
        """A group of the optimizer, which has checked it."""
        Optimizer.add_param_group(self, param_group)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """Not by groups: the optimizer does it."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of the optimizer; a weight that is not finite any more stops it."""
        self._optimizer.step()
        for group in self.param_groups:
            self._check_finite({"step": 0, **group}, group["params"])

    def stability_limit(self, curvature: float) -> float:
        """Unknown."""
        raise NotImplementedError

    def gradient_noise_temperature(self, variance: float) -> float:
        """Unknown."""
        raise NotImplementedError

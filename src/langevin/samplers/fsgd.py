"""Constant-rate SGD as approximate inference (Mandt, Hoffman & Blei 2017).

    θ ← θ − ε g                                                                           lr = ε

Target: none in general. The stationary covariance depends on ε, on the batch size and on the covariance of the
gradients, and equals that of the posterior only by coincidence.

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
class FSGD(Sampler):
    """Constant-rate SGD whose iterates are treated as posterior samples. Schedules are refused.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        seed: not used, since no noise is injected.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    target = "none"
    order = None
    injects_noise = False
    constant_lr = True
    citation: ClassVar[str] = """@article{mandt2017stochastic,
  title={Stochastic gradient descent as approximate {B}ayesian inference},
  author={Mandt, Stephan and Hoffman, Matthew D and Blei, David M},
  journal={Journal of Machine Learning Research}, volume={18}, pages={1--35}, year={2017}}"""

    def __init__(
        self, params: Iterable[Any], lr: float, *, num_data: int, seed: int = 0, chain: int | Sequence[int] = 0
    ) -> None:
        super().__init__(params, lr=lr, num_data=num_data, seed=seed, chain=chain)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """θ ← θ − ε g."""
        add_each(params, grads, -group["lr"])

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(params, lr=group["lr"])

    def stability_limit(self, curvature: float) -> float:
        """2/λ."""
        return 2 / curvature

    def gradient_noise_temperature(self, variance: float) -> float:
        """ε N Var(g)/2: the temperature itself, since no noise is injected."""
        group = self.param_groups[0]
        return float(group["lr"] * group["num_data"] * variance / 2)

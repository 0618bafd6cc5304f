"""Stochastic gradient Langevin dynamics (Welling & Teh 2011).

    θ ← θ − ε g + √(2εT/N) η                                        lr = ε, g = ∇Û/N, η standard normal

Target: exp(−U/T), up to a bias of order ε: on a quadratic of curvature λ the variance is too large by the factor
1/(1 − ελ/2), and mini-batch noise of variance Var(g) adds ε N Var(g)/2 to the temperature. Smaller ε mends both.

Noise: its standard deviation grows with √lr and √T and falls with √N; drift and noise balance at T whatever lr is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.samplers.base import Group, Noise, Normals, Sampler


class SGLD(Sampler):
    """Langevin dynamics with mini-batch gradients; at T = 0 it is SGD."""

    citation: ClassVar[str] = """@inproceedings{welling2011bayesian,
  title={Bayesian learning via stochastic gradient {L}angevin dynamics}, author={Welling, Max and Teh, Yee W},
  booktitle={Proceedings of the 28th International Conference on Machine Learning}, pages={681--688}, year={2011}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        noise: Noise = "gaussian",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(params, lr=lr, num_data=num_data, noise=noise, temperature=temperature, seed=seed, chain=chain)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """θ ← θ − ε g + √(2εT/N) η."""
        lr, temperature = group["lr"], group["temperature"]
        torch._foreach_add_(params, grads, alpha=-lr)
        if temperature > 0:
            torch._foreach_add_(params, normals(), alpha=math.sqrt(2 * lr * temperature / group["num_data"]))

    def stability_limit(self, curvature: float) -> float:
        """2/λ, where 1 − ελ reaches −1."""
        return 2 / curvature

    def gradient_noise_temperature(self, variance: float) -> float:
        """ε N Var(g)/2, from ε²Var(g) beside 2εT/N."""
        group = self.param_groups[0]
        return float(group["lr"] * group["num_data"] * variance / 2)

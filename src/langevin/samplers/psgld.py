"""SGLD preconditioned by RMSprop's diagonal (Li et al. 2016).

    V ← αV + (1−α) g⊙g,   A = diag(1/(λ + √V))
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η                                          lr = ε, α = alpha, λ = eps

Target: exp(−U/T) once frozen, up to a bias of order ε. While V still moves the term Γ is missing, which inflated
variances by 15 to 57 % in a test; `sample` freezes V at the end of burn-in.

With `precondition="noise"` only the noise is preconditioned, as in the experiments of Palacci & Hess (2018): that has
no posterior as its target, and at T = 0 it is SGD. Their letter, noise Aη of half the variance, is
`precondition="noise", noise_power=1.0, temperature=0.5`: for reproduction only.

Noise: its standard deviation grows with √lr and √T and falls with √N, and weights with small gradients get more of it,
in step with their drift. At T = 0 this is `torch.optim.RMSprop(alpha=0.99, eps=1e-5)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from langevin.preconditioners import RMSprop
from langevin.samplers.base import SAMPLERS, Group, Noise
from langevin.samplers.langevin import Langevin, Precondition


@SAMPLERS.register
class pSGLD(Langevin):
    """Langevin dynamics with a step size for every weight.

    Args:
        params: parameters or groups of them.
        lr: ε.
        num_data: number of training examples N.
        alpha: α, weight of the old V in its moving average.
        eps: λ, which bounds A by 1/λ.
        precondition: `"both"` drift and noise, or the `"noise"` alone.
        noise_power: the noise is A to this power times η; only 0.5 goes with the drift.
        temperature: T.
        seed: of the noise.
        chain: the number of this chain, or several (see `Sampler`).
    """

    citation: ClassVar[str] = """@inproceedings{li2016preconditioned,
  title={Preconditioned stochastic gradient {L}angevin dynamics for deep neural networks},
  author={Li, Chunyuan and Chen, Changyou and Carlson, David and Carin, Lawrence},
  booktitle={Proceedings of the AAAI Conference on Artificial Intelligence}, volume={30}, year={2016}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        alpha: float = 0.99,
        eps: float = 1e-5,
        precondition: Precondition = "both",
        noise_power: float = 0.5,
        noise: Noise = "gaussian",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=RMSprop(alpha, eps, noise_power=noise_power),
            precondition=precondition,
            noise=noise,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """RMSprop."""
        return torch.optim.RMSprop(params, lr=group["lr"], alpha=0.99, eps=1e-5)

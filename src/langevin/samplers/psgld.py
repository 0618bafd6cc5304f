"""SGLD preconditioned by RMSprop's diagonal (Li et al. 2016).

    V ← V + w (g⊙g − V),   A = diag(1/(λ + √V))                      w = (1−α)/(1−αⁿ) in step n: bias-corrected
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η                                          lr = ε, α = alpha, λ = eps

Target: exp(−U/T) once frozen, up to a bias of order ε. While V adapts the term Γ is missing, which inflated variances
by 15 to 57 % in a test; `sample` freezes V at the end of burn-in. Over the first `warmup` steps lr rises linearly from
0: from a trained network V has only small gradients at first, and the first step alone could leave it far behind.

With `precondition="noise"` only the noise is preconditioned, as in the experiments of Palacci & Hess (2018): then the
target is not the posterior, and at T = 0 it is SGD. Their exact update, with noise Aη of half the variance, is
`precondition="noise", noise_power=1.0, temperature=0.5`: for reproduction only.

Noise: its standard deviation is proportional to √(lr·T/N), its covariance to the A of the drift: larger for weights
with small gradients. At T = 0 and warmup=0 this is RMSprop with bias correction, `torch.optim.Adam(betas=(0.0, α))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from langevin.preconditioners import RMSprop
from langevin.samplers.base import SAMPLERS, Group
from langevin.samplers.langevin import Langevin, Precondition


@SAMPLERS.register
class pSGLD(Langevin):
    """Langevin dynamics with an adaptive step size for every weight.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        alpha: α, weight of the previous V in its moving average.
        eps: λ, which bounds A by 1/λ.
        precondition: `"both"` drift and noise, or only the `"noise"`.
        noise_power: the noise is A to this power times η; only 0.5 samples the posterior.
        warmup: steps in which lr rises from 0, while V is learnt; 0 for none.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).
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
        warmup: int = 50,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=RMSprop(alpha, eps, noise_power=noise_power, warmup=warmup),
            precondition=precondition,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """RMSprop with bias correction: Adam without momentum. After the warm-up, or without one."""
        return torch.optim.Adam(params, lr=group["lr"], betas=(0.0, 0.99), eps=1e-5)

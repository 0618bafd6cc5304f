"""Stochastic gradient Langevin dynamics (Welling & Teh 2011).

    θ ← θ − ε g + √(2εT/N) η                                        lr = ε, g = ∇Û/N, η standard normal

Target: exp(−U/T), up to a bias of order ε: on a quadratic of curvature λ the variance is too large by the factor
1/(1 − ελ/2), and mini-batch noise of variance Var(g) adds ε N Var(g)/2 to the temperature. A smaller ε reduces both.

With a preconditioner A, `lv.SGLD(…, preconditioner=lv.preconditioners.KFAC())`, the update is that of
`samplers.langevin`: θ ← θ − ε A g + √(2εT/N) A^{1/2} η + (εT/N) Γ, with the same target once A is frozen. pSGLD, KSGLD,
BNPSGLD and NLD are shortcuts for it.

Noise: its standard deviation is proportional to √(lr·T/N); drift and noise balance at temperature T for every lr.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from langevin.preconditioners import Identity, Preconditioner
from langevin.samplers.base import SAMPLERS, Group
from langevin.samplers.langevin import Langevin, Precondition


@SAMPLERS.register
class SGLD(Langevin):
    """Langevin dynamics with mini-batch gradients; at T = 0 it is SGD.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        preconditioner: A, an unbound object of `lv.preconditioners`; None for A = I.
        precondition: `"both"` drift and noise, or only the `"noise"`, with which the target is not the posterior.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    citation: ClassVar[str] = """@inproceedings{welling2011bayesian,
  title={Bayesian learning via stochastic gradient {L}angevin dynamics}, author={Welling, Max and Teh, Yee W},
  booktitle={Proceedings of the 28th International Conference on Machine Learning}, pages={681--688}, year={2011}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        preconditioner: Preconditioner | None = None,
        precondition: Precondition = "both",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=Identity() if preconditioner is None else preconditioner,
            precondition=precondition,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """SGD, without a preconditioner."""
        return torch.optim.SGD(params, lr=group["lr"])

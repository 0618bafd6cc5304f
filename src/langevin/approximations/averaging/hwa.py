"""Hyperparameters weight averaging (HWA): averages of variational parameters over a cyclical learning rate.

    every c steps:   μ̄, B = mean and variance of the μₖ (Welford);   V = mean of the σ²ₖ (not of the ρₖ)
    w ~ N(μ̄, B)          variance="between": the paper's intent
    w ~ N(μ̄, V + B)      variance="total": the variance of the mixture of all q_k, by the law of total variance

The printed recursion, σ ← (nσ + μₖ²)/(n + 1) − μ̄², subtracts the squared mean again at every snapshot: the result is
not a variance and soon negative (numbers in docs/variational.md). Target: that of the family's ELBO, widened by the
spread of the iterates; N enters through the ELBO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from langevin.approximations.averaging.moments import Moments
from langevin.approximations.averaging.swa import Averaging
from langevin.approximations.averaging.swag import check_columns, columns_of
from langevin.approximations.base import APPROXIMATIONS, check_rank, count_weights
from langevin.approximations.distributions import LowRankGaussian, Weights
from langevin.approximations.variational import Family, MeanField
from langevin.approximations.variational.objective import normal_of
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior


@APPROXIMATIONS.register
@dataclass(frozen=True)
class HWA(Averaging):
    """HWA (Anonymous, "Averaging hyperparameters in Bayesian neural networks leads to better generalization").

    Start it from a trained solution: `fit(…, init=…)`.

    Args:
        cycle: c, steps between snapshots.
        low: γ₂, the learning rate at the end of a cycle; γ₁ is the optimizer's lr. If None, the rate is constant.
        family: the variational family that is averaged: `MeanField(…)` or `LowRank(…)`.
        variance: "total" or "between", see above.
        rank: with K > 0, half of B is replaced by the last K deviations of the μₖ, as in SWAG.
    """

    family: Family = field(default_factory=MeanField)
    variance: str = "total"
    rank: int = 0
    citation: ClassVar[str] = """@misc{hwa2020,
  title={{HWA}: averaging hyperparameters in {B}ayesian neural networks leads to better generalization},
  author={{Anonymous authors}}, note={Paper under double-blind review}, year={2020}}"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance not in ("total", "between"):
            raise ValueError(f'HWA(variance={self.variance!r}): choose "total" or "between".')
        if not isinstance(self.family, Family):
            raise ValueError(f"HWA(family={self.family!r}): give lv.MeanField(…) or lv.LowRank(…).")

    def objective(self, posterior: Posterior) -> Objective:
        """That of the family."""
        return self.family.objective(posterior)

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """That of the family."""
        return self.family.start(weights, seed)

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """At least two snapshots, and as many as the rank."""
        super().check(posterior, snapshots)
        self.family.check(posterior, snapshots)
        if self.rank != 0:
            check_rank(self, self.rank, count_weights(posterior))
            check_columns(self, self.rank, snapshots)

    def center(self, snapshot: Weights, names: list[str]) -> dict[str, Tensor]:
        """The means."""
        return self.family.center(snapshot, names)

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> LowRankGaussian:
        """N(μ̄, V + B) or N(μ̄, B). V includes the mean of the F Fᵀ of a low-rank family: all columns, divided by √n."""
        self.check_count(len(snapshots))
        moments = Moments(names, last=self.rank)
        within = Moments(names)
        columns: dict[str, list[Tensor]] = {}
        for snapshot in snapshots:
            q = normal_of(snapshot, names)
            moments.add(q.mean)
            within.add(q.variance)
            for name, factor in q.factors.items():
                columns.setdefault(name, []).append(factor)
        dtypes = {name: m.dtype for name, m in q.mean.items()}
        variance = {name: moments.variance(name) / (2 if self.rank else 1) for name in names}
        factors: dict[str, list[Tensor]] = {}
        if self.rank:
            factors = {name: [columns_of(moments, name)] for name in names}
        if self.variance == "total":
            variance = {name: v + within.mean[name] for name, v in variance.items()}
            for name, several in columns.items():
                factors.setdefault(name, []).append(torch.cat(several, dim=-1) / moments.count**0.5)
        return LowRankGaussian(
            {name: moments.mean[name].to(dtypes[name]) for name in names},
            {name: variance[name].to(dtypes[name]) for name in names},
            {name: torch.cat(several, dim=-1).to(dtypes[name]) for name, several in factors.items()},
        )

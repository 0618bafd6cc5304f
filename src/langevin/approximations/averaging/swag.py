"""SWAG: a normal distribution with the moments of SGD's iterates.

    θ̄, Σ_diag = mean and variance of the iterates;  D̂ = the last K deviations θᵢ − θ̄ᵢ, θ̄ᵢ the mean including θᵢ
    w = θ̄ + (1/√2) Σ_diag^{1/2} z₁ + (1/√(2(K−1))) D̂ z₂

Target: none; the covariance is that of SGD at its learning rate, which equals the posterior's only by coincidence. N
and T enter only through lr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from langevin.approximations.averaging.moments import Moments
from langevin.approximations.averaging.swa import Averaging
from langevin.approximations.base import APPROXIMATIONS, check_rank, count_weights
from langevin.approximations.distributions import LowRankGaussian, Weights
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior


@APPROXIMATIONS.register
@dataclass(frozen=True)
class SWAG(Averaging):
    """SWAG (Maddox et al. 2019).

    Args:
        cycle: c, steps between snapshots.
        low: the learning rate at the end of a cycle, see `Averaging`.
        rank: K, the number of deviations.
    """

    rank: int = 10
    tolerates: ClassVar[tuple[str, ...]] = ("batchnorm",)
    citation: ClassVar[str] = """@inproceedings{maddox2019simple,
  title={A simple baseline for {B}ayesian uncertainty in deep learning},
  author={Maddox, Wesley J and Izmailov, Pavel and Garipov, Timur and Vetrov, Dmitry P and Wilson, Andrew Gordon},
  booktitle={Advances in Neural Information Processing Systems}, volume={32}, year={2019}}"""

    def objective(self, posterior: Posterior) -> Objective:
        """The posterior's loss."""
        return posterior

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """At least two snapshots, and as many as the rank."""
        super().check(posterior, snapshots)
        check_rank(self, self.rank, count_weights(posterior))
        check_columns(self, self.rank, snapshots)

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> LowRankGaussian:
        """Half of the variance on the diagonal, half in the deviations."""
        self.check_count(len(snapshots))
        moments = Moments(names, last=self.rank)
        for snapshot in snapshots:
            moments.add(snapshot)
            dtypes = {name: snapshot[name].dtype for name in names}
        return LowRankGaussian(
            {name: moments.mean[name].to(dtypes[name]) for name in names},
            {name: (moments.variance(name) / 2).to(dtypes[name]) for name in names},
            {name: columns_of(moments, name).to(dtypes[name]) for name in names},
        )


def columns_of(moments: Moments, name: str) -> Tensor:
    """D̂/√(2(K−1)), K the number of columns so far: an unfinished fit has fewer than the rank."""
    deviations = moments.deviations(name)
    scaled: Tensor = deviations / (2 * (deviations.shape[-1] - 1)) ** 0.5
    return scaled


def check_columns(method: Averaging, rank: int, snapshots: int) -> None:
    """Raise unless 2 ≤ rank ≤ number of snapshots."""
    if not 2 <= rank <= snapshots:
        raise ValueError(
            f"{type(method).__name__}(rank={rank}) needs the deviations of {rank} snapshots; there would be "
            f"{snapshots}. Give a rank from 2 to {snapshots}, or more steps."
        )

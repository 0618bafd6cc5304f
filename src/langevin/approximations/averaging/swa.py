"""Stochastic weight averaging: the mean of the iterates of SGD at a high or cyclical rate.

    every c steps:   θ̄ ← θ̄ + (θ − θ̄)/n

Target: none; a point estimate, in the flat region that SGD explores. N and T do not enter. BatchNorm statistics are
re-estimated at the mean, since those of the iterates belong to other weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from langevin.approximations.averaging.moments import Moments
from langevin.approximations.base import APPROXIMATIONS, Approximation
from langevin.approximations.distributions import LowRankGaussian, WeightDistribution, Weights
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.core.schedules import sawtooth


@dataclass(frozen=True)
class Averaging(Approximation):
    """The base of SWA, SWAG and HWA.

    Args:
        cycle: c, steps between snapshots.
        low: if given, the learning rate decreases linearly in each cycle from the optimizer's lr (γ₁) to this one (γ₂).
    """

    cycle: int = 100
    low: float | None = None
    least: ClassVar[int] = 2  # minimum number of snapshots

    def __post_init__(self) -> None:
        if self.cycle < 1:
            raise ValueError(f"{type(self).__name__}(cycle={self.cycle}): a cycle takes at least one step.")

    def schedule(self) -> Any:
        """Cycles from lr to `low`, or no schedule."""
        return None if self.low is None else sawtooth(self.cycle, self.low)

    def spacing(self, steps: int, burn_in: int) -> tuple[int, int]:
        """Snapshots at the ends of cycles."""
        if self.cycle > steps - burn_in:
            raise ValueError(
                f"{type(self).__name__}(cycle={self.cycle}): the cycle is longer than the {steps - burn_in} steps that "
                f"follow burn-in, so nothing would be averaged. Write cycle={max(1, (steps - burn_in) // 10)}."
            )
        return self.cycle, 0

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """Raise if there are too few snapshots to average."""
        self.check_count(snapshots)

    def check_count(self, snapshots: int) -> None:
        """Raise if there are too few snapshots for a variance."""
        if snapshots < self.least:
            raise ValueError(
                f"{type(self).__name__} takes the variance of snapshots, and of {snapshots} there is none; it needs "
                f"{self.least} or more. Use more steps, or a cycle shorter than {self.cycle}."
            )

    @abstractmethod
    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """The distribution given by the averages."""


@APPROXIMATIONS.register
@dataclass(frozen=True)
class SWA(Averaging):
    """Stochastic weight averaging (Izmailov et al. 2018): one set of weights, the mean. Arguments as in `Averaging`."""

    least: ClassVar[int] = 1
    tolerates: ClassVar[tuple[str, ...]] = ("batchnorm",)
    citation: ClassVar[str] = """@inproceedings{izmailov2018averaging,
  title={Averaging weights leads to wider optima and better generalization},
  author={Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and Wilson, Andrew Gordon},
  booktitle={Uncertainty in Artificial Intelligence}, year={2018}}"""

    def objective(self, posterior: Posterior) -> Objective:
        """The posterior's loss."""
        return posterior

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> LowRankGaussian:
        """A point mass at the mean."""
        moments = Moments(names)
        dtypes = {}
        for snapshot in snapshots:
            moments.add(snapshot)
            dtypes = {name: snapshot[name].dtype for name in names}
        mean = {name: moments.mean[name].to(dtypes[name]) for name in names}
        return LowRankGaussian(mean, {name: torch.zeros_like(m) for name, m in mean.items()})

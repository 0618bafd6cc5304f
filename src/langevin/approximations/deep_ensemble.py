"""Deep ensembles (Lakshminarayanan, Pritzel & Blundell 2017): optima from several initializations, with equal weights.

Each member starts at its own initialization and is trained by AdamW with early stopping on a part of the data, by the
recipe of the autopilot's warm start. No distribution about an optimum is estimated: what a deep ensemble knows of
uncertainty is how its members differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from langevin.approximations.base import APPROXIMATIONS, Approximation
from langevin.approximations.distributions import WeightDistribution, Weights
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior


class Atoms(WeightDistribution):
    """Equal probability of each of some sets of weights."""

    def __init__(self, members: Sequence[Weights]) -> None:
        self.members = [dict(member) for member in members]
        self.mean = {name: torch.stack([m[name] for m in self.members]).mean(0) for name in self.members[0]}

    @property
    def is_point(self) -> bool:  # type: ignore[override]
        """Whether there is one set of weights."""
        return len(self.members) == 1

    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """The members in their order, again and again: any multiple of their number has equal weights."""
        return self.members[number % len(self.members)]

    def entropy(self) -> Tensor:
        """−∞: it has no density."""
        return self._number(-math.inf)

    def _squared_distance(self, deviation: Weights) -> Tensor:
        return self._number(math.inf)

    def _number(self, value: float) -> Tensor:
        return next(iter(self.mean.values())).new_full((), value)

    def covariance(self) -> Tensor:
        """That of the members."""
        rows = torch.stack([torch.cat([m[name].flatten() for name in self.mean]) for m in self.members])
        off = rows - rows.mean(0)
        return off.T @ off / len(rows)


@APPROXIMATIONS.register
@dataclass(frozen=True)
class DeepEnsemble(Approximation):
    """`lv.fit(posterior, train, lv.DeepEnsemble(5))`: needs no optimizer and no number of steps.

    Args:
        members: how many networks.
    """

    members: int = 5

    takes_steps: ClassVar[bool] = False
    citation: ClassVar[str] = """@inproceedings{lakshminarayanan2017simple,
  title={Simple and scalable predictive uncertainty estimation using deep ensembles},
  author={Lakshminarayanan, Balaji and Pritzel, Alexander and Blundell, Charles}, booktitle={NeurIPS}, year={2017}}"""

    def __post_init__(self) -> None:
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise ValueError(f"DeepEnsemble(members={self.members!r}): give a number of networks, 1 or more.")

    @property
    def prediction_draws(self) -> int:
        """A prediction averages over all members."""
        return self.members

    def objective(self, posterior: Posterior) -> Objective:
        """The posterior itself: members are optima of its loss, stopped early."""
        return posterior

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """Snapshots are the members."""
        return Atoms([{name: member[name] for name in names} for member in snapshots])

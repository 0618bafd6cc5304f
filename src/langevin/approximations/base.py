"""What an approximation is: what is minimized, where from, and the distribution that the iterates on the way make.

`lv.fit` does the rest, in the loop that samplers run in. One is registered by `@APPROXIMATIONS.register` on its class
and one import in `approximations/__init__.py`: `lv.NAME`, the command line, the citation and resuming follow.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from langevin.approximations.distributions import WeightDistribution, Weights
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.core.registry import Registry

APPROXIMATIONS: Registry[type[Approximation]] = Registry("approximation")


@dataclass(frozen=True)
class Approximation(ABC):
    """A distribution to fit; its fields are its settings, JSON-serializable, or other approximations."""

    citation: ClassVar[str]  # BibTeX
    tolerates_batchnorm: ClassVar[bool] = False

    @abstractmethod
    def objective(self, posterior: Posterior) -> Objective:
        """What is minimized; the posterior may be changed, it is a copy."""

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """The parameters of the objective that go with these weights."""
        return dict(weights)

    def spacing(self, steps: int, burn_in: int) -> tuple[int, int]:
        """Snapshots are taken when the first number divides step − the second."""
        every = max(1, (steps - burn_in) // 10)
        return every, steps % every

    def schedule(self) -> Any:
        """The learning rate's own schedule, if the method brings one: a function from optimizer to scheduler."""
        return None

    def check(self, posterior: Posterior, snapshots: int) -> None:  # noqa: B027
        """Raise if the method can't work on this posterior with so many snapshots."""

    @abstractmethod
    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """The distribution over the weights of these names that the snapshots make."""

    def center(self, snapshot: Weights, names: list[str]) -> dict[str, Tensor]:
        """The weights of these names that a snapshot stands for; the mean, where it is of a distribution."""
        return {name: snapshot[name] for name in names}

    def recipe(self) -> dict[str, Any]:
        """How the method stands in a manifest."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        written = {name: v.recipe() if isinstance(v, Approximation) else v for name, v in settings.items()}
        return {"name": type(self).__name__, "options": written}


def count_weights(posterior: Posterior) -> int:
    """How many numbers are sampled or fitted."""
    return sum(p.numel() for p in posterior.trainable_parameters().values())


def check_rank(method: Approximation, rank: int, dimension: int) -> None:
    """Refuse a rank that is no rank of a covariance of that dimension."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= dimension:
        raise ValueError(
            f"{type(method).__name__}(rank={rank!r}): the model has {dimension} weights; give a rank from 1 to "
            f"{dimension}, such as rank={min(10, dimension)}."
        )

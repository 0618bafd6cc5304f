"""The interface of an approximation: objective, initial parameters, and the distribution of the snapshots.

`lv.fit` minimizes the objective in the loop that also runs samplers. To add an approximation, put
`@APPROXIMATIONS.register` on its class and one import into `approximations/__init__.py`: `lv.NAME`, the command line,
the citation and `lv.resume` follow from the registry.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from langevin.approximations.distributions import WeightDistribution, Weights
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.core.registry import Registry

APPROXIMATIONS: Registry[type[Approximation]] = Registry("approximation")


@dataclass(frozen=True)
class Approximation(ABC):
    """A distribution to fit; its fields are settings, JSON-serializable, or other approximations."""

    citation: ClassVar[str]  # BibTeX
    tolerates: ClassVar[tuple[str, ...]] = ()  # "batchnorm", "dropout": layers that samplers refuse
    default_draws: ClassVar[int] = 30
    takes_steps: ClassVar[bool] = True
    own_optimizer: ClassVar[bool] = False  # else the user chooses one

    @property
    def prediction_draws(self) -> int:
        """Over how many draws of the weights a prediction averages."""
        return self.default_draws

    @property
    def linearized(self) -> bool:
        """Whether predictions linearize the model about the mean of the weights."""
        return False

    @abstractmethod
    def objective(self, posterior: Posterior) -> Objective:
        """The loss to minimize; the given posterior is a copy and may be modified."""

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """The initial parameters of the objective for these weights."""
        return dict(weights)

    def spacing(self, steps: int, burn_in: int) -> tuple[int, int]:
        """(every, offset): snapshots are taken at steps with (step − offset) divisible by every."""
        every = max(1, (steps - burn_in) // 10)
        return every, steps % every

    def schedule(self) -> Any:
        """The learning-rate schedule of the method, if it has one: a function from optimizer to scheduler."""
        return None

    def stepper(self, posterior: Posterior) -> Callable[..., Optimizer] | None:
        """What makes the optimizer, `make(params, num_data=…, seed=…, chain=…)`, if the method has its own."""
        return None

    def check(self, posterior: Posterior, snapshots: int) -> None:  # noqa: B027
        """Raise if the method does not support this posterior or this number of snapshots."""

    @abstractmethod
    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """The distribution over the weights of these names, from the snapshots."""

    def center(self, snapshot: Weights, names: list[str]) -> dict[str, Tensor]:
        """The weights of these names at a snapshot; their mean, if the snapshot describes a distribution."""
        return {name: snapshot[name] for name in names}

    def recipe(self) -> dict[str, Any]:
        """Name and settings, JSON-serializable, for the manifest."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        options = {name: v.recipe() if isinstance(v, Approximation) else v for name, v in settings.items()}
        return {"name": type(self).__name__, "options": options}


def count_weights(posterior: Posterior) -> int:
    """The number of trainable weights."""
    return sum(p.numel() for p in posterior.trainable_parameters().values())


def check_rank(method: Approximation, rank: int, dimension: int) -> None:
    """Raise unless the rank is valid for a covariance of that dimension."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= dimension:
        raise ValueError(
            f"{type(method).__name__}(rank={rank!r}): the model has {dimension} weights; give a rank from 1 to "
            f"{dimension}, such as rank={min(10, dimension)}."
        )

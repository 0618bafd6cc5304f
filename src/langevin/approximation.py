"""Distributions over the weights of a model that can be drawn from, and the methods that fit them.

A method says what is to be minimized, where from, and what distribution the iterates on the way (snapshots) make. `fit`
does the rest, in the loop that samplers run in.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin import noise
from langevin.posterior import Posterior

Weights = Mapping[str, Tensor]


class Approximation(ABC):
    """A distribution over weights; `mean` maps their names to tensors."""

    mean: dict[str, Tensor]
    is_point: bool = False  # all draws are equal

    @abstractmethod
    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """Weights that are a pure function of the distribution, the seed and the number of the draw."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """−E[log q], in nats."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """The full matrix, all weights in one vector in the order of `mean`; for small models."""

    def _normals(self, count: int, seed: int, number: int) -> Tensor:
        like = next(iter(self.mean.values()))
        return noise.normal(
            count, seed=seed, chain=0, step=number, stream=noise.Stream.DRAWS, dtype=like.dtype, device=like.device
        )


@dataclass(frozen=True)
class LowRankGaussian(Approximation):
    """N(mean, diag(variance) + F Fᵀ): `factors` has the rows of F for each weight, (…, rank), or is empty."""

    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    factors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The number of columns of F."""
        return next(iter(self.factors.values())).shape[-1] if self.factors else 0

    @property
    def is_point(self) -> bool:  # type: ignore[override]
        """Whether there is nothing random."""
        return self.rank == 0 and not any(bool(v.any()) for v in self.variance.values())

    @torch.no_grad()
    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """mean + √variance ⊙ z₁ + F z₂."""
        sizes = [m.numel() for m in self.mean.values()]
        z = self._normals(sum(sizes) + self.rank, seed, number)
        pieces = torch.split(z[: sum(sizes)], sizes)
        z1 = {name: piece.reshape(m.shape) for (name, m), piece in zip(self.mean.items(), pieces, strict=True)}
        moved = self.center(z[sum(sizes) :])
        return {name: moved[name] + self.variance[name].sqrt() * z1[name] for name in self.mean}

    def center(self, z2: Tensor) -> dict[str, Tensor]:
        """mean + F z₂, where independent noise of the given variances is still to be added."""
        return {name: m + self.factors[name] @ z2 if self.factors else m for name, m in self.mean.items()}

    def marginal_variance(self, name: str) -> Tensor:
        """The variance of each weight by itself."""
        own = self.variance[name]
        return own + self.factors[name].square().sum(-1) if self.factors else own

    def entropy(self) -> Tensor:
        """½ (d (1 + log 2π) + Σ log variance + log det(I + Fᵀ diag(variance)⁻¹ F))."""
        count = sum(m.numel() for m in self.mean.values())
        log_det = torch.stack([v.log().sum() for v in self.variance.values()]).sum()
        if self.factors:
            rows = {name: factor.reshape(-1, self.rank) for name, factor in self.factors.items()}
            inner = torch.stack([f.T @ (f / self.variance[name].reshape(-1, 1)) for name, f in rows.items()]).sum(0)
            log_det = log_det + torch.logdet(torch.eye(self.rank).to(inner) + inner)
        return 0.5 * (count * (1 + math.log(2 * math.pi)) + log_det)

    def covariance(self) -> Tensor:
        """diag(variance) + F Fᵀ."""
        diagonal = torch.cat([v.flatten() for v in self.variance.values()]).diag()
        if not self.factors:
            return diagonal
        rows = torch.cat([self.factors[name].reshape(-1, self.rank) for name in self.variance])
        return diagonal + rows @ rows.T


@dataclass(frozen=True)
class Method(ABC):
    """A way to fit a distribution; its fields are its settings, made of what JSON has, or other methods."""

    citation: ClassVar[str]  # BibTeX
    tolerates_batchnorm: ClassVar[bool] = False

    @abstractmethod
    def objective(self, posterior: Posterior) -> Posterior:
        """What is minimized; the posterior may be changed, it is a copy."""

    def start(self, objective: Posterior, weights: Weights, seed: int) -> dict[str, Tensor]:
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
    def approximation(self, snapshots: Sequence[Weights], names: list[str]) -> Approximation:
        """The distribution over the weights of these names that the snapshots make."""

    def recipe(self) -> dict[str, Any]:
        """How the method stands in a manifest."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        written = {name: v.recipe() if isinstance(v, Method) else v for name, v in settings.items()}
        return {"name": type(self).__name__, "options": written}


def count_weights(posterior: Posterior) -> int:
    """How many numbers are sampled or fitted."""
    return sum(p.numel() for p in posterior.sampled_parameters().values())


def check_rank(method: Method, rank: int, dimension: int) -> None:
    """Refuse a rank that is no rank of a covariance of that dimension."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= dimension:
        raise ValueError(
            f"{type(method).__name__}(rank={rank!r}): the model has {dimension} weights; give a rank from 1 to "
            f"{dimension}, such as rank={min(10, dimension)}."
        )

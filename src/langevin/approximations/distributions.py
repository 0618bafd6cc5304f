"""Distributions over the weights of a model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from langevin.core import random

Weights = Mapping[str, Tensor]


class WeightDistribution(ABC):
    """A distribution over weights; `mean` maps their names to tensors."""

    mean: dict[str, Tensor]
    is_point: bool = False  # all draws are equal

    @abstractmethod
    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """One draw: a pure function of the distribution, the seed and the number of the draw."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """−E[log q], in nats."""

    def log_prob(self, weights: Weights) -> Tensor:
        """log q(w) = −½ (w−mean)ᵀ Σ⁻¹ (w−mean) + ½ d − entropy, of a normal distribution."""
        deviation = {name: weights[name] - m for name, m in self.mean.items()}
        return 0.5 * (self.count() - self._squared_distance(deviation)) - self.entropy()

    @abstractmethod
    def _squared_distance(self, deviation: Weights) -> Tensor:
        """δᵀ Σ⁻¹ δ."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """The full matrix over all weights, flattened in the order of `mean`; for small models."""

    def count(self) -> int:
        """The number of weights."""
        return sum(m.numel() for m in self.mean.values())

    def _normals(self, count: int, seed: int, number: int) -> Tensor:
        like = next(iter(self.mean.values()))
        return random.normal(
            count, seed=seed, chain=0, step=number, stream=random.Stream.DRAWS, dtype=like.dtype, device=like.device
        )


@dataclass(frozen=True)
class LowRankGaussian(WeightDistribution):
    """N(mean, diag(variance) + F Fᵀ): `factors` contains the rows of F for each weight, (…, rank), or is empty."""

    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    factors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The number of columns of F."""
        return next(iter(self.factors.values())).shape[-1] if self.factors else 0

    @property
    def is_point(self) -> bool:  # type: ignore[override]
        """Whether the variance is 0."""
        return self.rank == 0 and not any(bool(v.any()) for v in self.variance.values())

    @torch.no_grad()
    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """mean + √variance ⊙ z₁ + F z₂."""
        count = self.count()
        z = self._normals(count + self.rank, seed, number)
        z1 = split_like(z[:count], self.mean)
        moved = self.center(z[count:])
        return {name: moved[name] + self.variance[name].sqrt() * z1[i] for i, name in enumerate(self.mean)}

    def center(self, z2: Tensor) -> dict[str, Tensor]:
        """mean + F z₂, without the independent noise."""
        return {name: m + self.factors[name] @ z2 if self.factors else m for name, m in self.mean.items()}

    def marginal_variance(self, name: str) -> Tensor:
        """The marginal variance of each weight."""
        own = self.variance[name]
        return own + self.factors[name].square().sum(-1) if self.factors else own

    def entropy(self) -> Tensor:
        """½ (d (1 + log 2π) + Σ log variance + log det(I + Fᵀ diag(variance)⁻¹ F))."""
        count = self.count()
        log_det = torch.stack([v.log().sum() for v in self.variance.values()]).sum()
        if self.factors:
            log_det = log_det + torch.logdet(self._inner())
        return 0.5 * (count * (1 + math.log(2 * math.pi)) + log_det)

    def _inner(self) -> Tensor:
        """I + Fᵀ diag(variance)⁻¹ F."""
        rows = {name: factor.reshape(-1, self.rank) for name, factor in self.factors.items()}
        inner: Tensor = torch.stack([f.T @ (f / self.variance[name].reshape(-1, 1)) for name, f in rows.items()]).sum(0)
        inner.diagonal().add_(1)
        return inner

    def _squared_distance(self, deviation: Weights) -> Tensor:
        """δᵀD⁻¹δ − bᵀ(I + FᵀD⁻¹F)⁻¹b with D = diag(variance), b = FᵀD⁻¹δ."""
        scaled = {name: d / self.variance[name] for name, d in deviation.items()}
        own = torch.stack([(scaled[name] * d).sum() for name, d in deviation.items()]).sum()
        if not self.factors:
            return own
        each = [self.factors[name].reshape(-1, self.rank).T @ s.flatten() for name, s in scaled.items()]
        b = torch.stack(each).sum(0)
        explained: Tensor = b @ torch.linalg.solve(self._inner(), b)
        return own - explained

    def covariance(self) -> Tensor:
        """diag(variance) + F Fᵀ."""
        diagonal = torch.cat([v.flatten() for v in self.variance.values()]).diag()
        if not self.factors:
            return diagonal
        rows = torch.cat([self.factors[name].reshape(-1, self.rank) for name in self.variance])
        return diagonal + rows @ rows.T


class FullGaussian(WeightDistribution):
    """N(mean, (L Lᵀ)⁻¹) over all weights, flattened."""

    def __init__(self, mean: dict[str, Tensor], root: Tensor) -> None:
        self.mean, self.root = mean, root

    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """mean + L⁻ᵀ z."""
        z = self._normals(len(self.root), seed, number)
        flat = torch.linalg.solve_triangular(self.root.mT, z[:, None], upper=True)[:, 0]
        moved = dict(zip(self.mean, split_like(flat, self.mean), strict=True))
        return {name: m + moved[name] for name, m in self.mean.items()}

    def entropy(self) -> Tensor:
        """½ d (1 + log 2π) − Σ log Lᵢᵢ."""
        return 0.5 * len(self.root) * (1 + math.log(2 * math.pi)) - self.root.diagonal().log().sum()

    def _squared_distance(self, deviation: Weights) -> Tensor:
        """‖Lᵀδ‖²."""
        flat = torch.cat([deviation[name].flatten() for name in self.mean])
        return (self.root.mT @ flat).square().sum()

    def covariance(self) -> Tensor:
        """(L Lᵀ)⁻¹."""
        return torch.cholesky_inverse(self.root)


class KroneckerGaussian(WeightDistribution):
    """Layer by layer: W = Ŵ + V_G (Z ⊙ scales) V_Aᵀ diag(prior root), with the bias, if any, as the last column of W.

    Weights that belong to no such layer are independent, with the given variances.
    """

    def __init__(
        self, mean: dict[str, Tensor], variance: dict[str, Tensor], blocks: dict[str, tuple[Tensor, ...]]
    ) -> None:
        self.mean, self.variance, self.blocks = mean, variance, blocks

    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """mean + M z, with the linear map M of the class's equation."""
        z = self._normals(self.count(), seed, number)
        moved = self._map(z)
        return {name: m + moved[name] for name, m in self.mean.items()}

    def entropy(self) -> Tensor:
        """½ d (1 + log 2π) + log |det M|."""
        count = self.count()
        logs = [0.5 * v.log().sum() for v in self.variance.values()]
        logs += [s.log().sum() + len(s) * p.log().sum() for _, s, _, p in self.blocks.values()]
        return 0.5 * count * (1 + math.log(2 * math.pi)) + torch.stack(logs).sum()

    def _squared_distance(self, deviation: Weights) -> Tensor:
        """‖M⁻¹δ‖²: Z = V_Gᵀ (δ / prior root) V_A / scales."""
        sums = [(deviation[name].square() / v).sum() for name, v in self.variance.items()]
        for layer, (output_vectors, scales, input_vectors, prior_root) in self.blocks.items():
            block = output_vectors.T @ (_block(deviation, layer, scales) / prior_root) @ input_vectors / scales
            sums.append(block.square().sum())
        return torch.stack(sums).sum()

    def covariance(self) -> Tensor:
        """M Mᵀ."""
        count = self.count()
        like = next(iter(self.mean.values()))
        columns = [self._map(e) for e in torch.eye(count, dtype=like.dtype, device=like.device)]
        matrix = torch.stack([torch.cat([column[name].flatten() for name in self.mean]) for column in columns])
        return matrix.T @ matrix

    def _map(self, z: Tensor) -> dict[str, Tensor]:
        parts = dict(zip(self.mean, split_like(z, self.mean), strict=True))
        moved = {name: v.sqrt() * parts[name] for name, v in self.variance.items()}
        for layer, (output_vectors, scales, input_vectors, prior_root) in self.blocks.items():
            weight, bias = _names(layer)
            block = output_vectors @ (_block(parts, layer, scales) * scales) @ input_vectors.T * prior_root
            columns = self.mean[weight][0].numel()
            moved[weight] = block[:, :columns].reshape(self.mean[weight].shape)
            if block.shape[1] > columns:
                moved[bias] = block[:, -1]
        return moved


def _names(layer: str) -> tuple[str, str]:
    """The names of a layer's weight and bias."""
    return (f"{layer}.weight", f"{layer}.bias") if layer else ("weight", "bias")


def _block(parts: Weights, layer: str, scales: Tensor) -> Tensor:
    """[W b] of a layer, without b if `scales` has no column for it."""
    weight, bias = _names(layer)
    taken = parts[weight].flatten(1)
    return torch.cat([taken, parts[bias][:, None]], dim=1) if scales.shape[1] > taken.shape[1] else taken


def split_like(flat: Tensor, tensors: Weights) -> list[Tensor]:
    """A flat vector, split and reshaped like these tensors."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors.values()])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors.values(), strict=True)]

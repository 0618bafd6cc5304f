"""Precisions of Gaussian priors that are sampled: their values, as buffers of a posterior, and their Gibbs draws.

λ | θ ~ Gamma(1 + (a − 1 + d/2)/T, rate (b + Σθ²/2)/T) for the d weights θ of a tensor: exact, whatever T, and without
data. A draw is a pure function of (seed, chain, step, position of the tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from langevin.core import random
from langevin.core.priors import SampledGaussian
from langevin.core.random import Stream


class PriorPrecisions(nn.Module):
    """The precision λ of each tensor with a sampled prior scale, a buffer; its name has / for dots."""

    def __init__(self) -> None:
        super().__init__()
        self.priors: dict[str, SampledGaussian] = {}

    def add(self, name: str, prior: SampledGaussian, parameter: Tensor) -> GivenPrecision:
        """Start at the mean of λ; returns the prior of the weights at the λ of the time."""
        self.priors[name] = prior
        first = torch.full((), prior.mean_precision, dtype=parameter.dtype, device=parameter.device)
        self.register_buffer(_key(name), first, persistent=False)
        return GivenPrecision(prior, self, _key(name))

    def value(self, name: str) -> Tensor:
        """The present λ of a tensor."""
        found: Tensor = getattr(self, _key(name))
        return found

    def internal_name(self, name: str) -> str:
        """The name for `functional_call` on the posterior."""
        return f"precisions.{_key(name)}"

    def due(self, step: int) -> list[str]:
        """The tensors whose λ is redrawn after that many steps."""
        return [name for name, prior in self.priors.items() if step > prior.start and step % prior.every == 0]

    def draw(
        self, name: str, weights: Tensor, *, temperature: float, seed: int, chains: Sequence[int], step: int
    ) -> Tensor:
        """λ | θ for the weights of each chain, (chains, …), in float64."""
        prior, position = self.priors[name], list(self.priors).index(name)
        squares = weights.detach().reshape(len(chains), -1).double().square().sum(1).tolist()
        drawn = []
        for chain, square in zip(chains, squares, strict=True):
            shape, rate = prior.posterior_of_precision(square, weights.numel() // len(chains), temperature)
            number = random.integer(seed=seed, chain=chain, step=step, stream=Stream.PRIOR, block=position)
            drawn.append(np.random.default_rng(number).standard_gamma(shape) / rate)
        return torch.tensor(drawn, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class GivenPrecision:
    """A Gaussian prior at the λ that its posterior has at the time."""

    prior: SampledGaussian
    precisions: PriorPrecisions
    key: str

    def log_prob(self, parameter: Tensor) -> Tensor:
        """log N(θ; 0, 1/λ)."""
        return self.prior.conditional_log_prob(parameter, getattr(self.precisions, self.key))


def _key(name: str) -> str:
    return name.replace(".", "/")

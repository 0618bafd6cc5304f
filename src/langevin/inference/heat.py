"""How much hotter than T a sampler is at its learning rate, from gradients alone.

**Langevin dynamics.** In the stationary state of the discrete chain the mean of |θ|² (in the metric A⁻¹) does not
change from step to step. Written out, that says what the virial temperature is, for any energy and any mini-batch
noise, with g the gradient of the mini-batch and A constant:

    N E[(θ−a)·g]/dim = T + (εN/2) E[gᵀA g]/dim          and along v, vᵀA⁻¹v = 1:   T + (εN/2) E[(v·g)²]

**Other samplers** say how they heat on a quadratic: in a direction of curvature λ, with mini-batch noise of variance C,
(T + h(C))/(1 − (lr/L(λ))^p), where h is `gradient_noise_temperature`, L `stability_limit` and p the order. C is half
the mean squared difference of two gradients at the same place.

Unlike readings of (θ−a)·g these need no anchor, are never below T, and settle as fast as the stiff directions. They say
nothing about directions that have not spread yet.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.batches import Batch, LoaderBatches
from langevin.inference.one_chain import OneChain
from langevin.inference.probe import fetch_probe, gradients_at
from langevin.samplers import Sampler
from langevin.samplers.langevin import Langevin

_DIFFERENCE = 0.01  # of a finite difference, over the root mean square of the weights
_TINY = torch.finfo(torch.float32).tiny
_EXAMPLES = 512  # at least so many, if there are, for a second derivative


class Pair(NamedTuple):
    """A quantity on average over all weights, and along the stiffest direction."""

    mean: float
    stiffest: float


class Gauge(ABC):
    """Reads the temperature over all weights and along the stiffest direction, step by step."""

    power: int  # the excess over T grows as lr to this power
    every_step = True  # whether each gradient is a reading, or each variance

    def __init__(self, chain: OneChain) -> None:
        assert isinstance(chain.stepper, Sampler)
        self.chain, self.sampler = chain, chain.stepper
        self.group = chain.stepper.param_groups[0]
        self.temperature = float(self.group["temperature"])
        self.count = sum(p.numel() for p in chain.params)
        self.direction: list[Tensor] = []
        self.curvature = math.nan  # along it, of U/N, in the metric A⁻¹
        self.largest = 0.0  # of the curvatures seen

    @torch.no_grad()
    def aim(self, start: list[Tensor], iterations: int) -> list[Tensor]:
        """Find the stiffest direction by power iteration, from a start; returns a start for the next time."""
        batch = _batch(self.chain)
        covector = start or _signs(self.chain, 0)
        for _ in range(iterations):
            vector = self.scaled(covector)
            norm = math.sqrt(max(dot(covector, vector), _TINY))
            self.direction = [v / norm for v in vector]
            covector = self._second_derivative(self.direction, batch)
            self.curvature = abs(dot(self.direction, covector))  # far from an optimum the largest may be negative
        self.largest = max(self.largest, self.curvature)
        self._look_around(batch)
        self.sampler.finish()  # what a preconditioner recorded is not of the chain
        return covector

    def _look_around(self, batch: Batch) -> None:  # noqa: B027
        """What else is to be known of the second derivatives."""

    def _second_derivative(self, vector: list[Tensor], batch: Batch) -> list[Tensor]:
        """∇²(U/N) v, by central differences."""
        theta = [p.detach().clone() for p in self.chain.params]
        length = _DIFFERENCE * _norm(theta) / math.sqrt(self.count) or _DIFFERENCE
        step = length / max(_norm(vector), _TINY)
        plus, minus = (
            gradients_at(self.chain, [t + sign * step * v for t, v in zip(theta, vector, strict=True)], batch)
            for sign in (1, -1)
        )
        return [(a - b) / (2 * step) for a, b in zip(plus, minus, strict=True)]

    def scaled(self, vector: list[Tensor]) -> list[Tensor]:
        """A v."""
        return vector

    @abstractmethod
    def limit(self) -> float:
        """The lr at which the stiffest direction becomes unstable."""

    @abstractmethod
    def read(self, variance: Pair) -> Pair:
        """The temperatures, by the gradient of this step or by that variance."""

    @torch.no_grad()
    def gradient_variance(self) -> Pair:
        """Var(g) of mini-batches, from the difference of the gradients of this step's batch and of another.

        Of one weight on average, and along the direction as a unit vector. It takes a gradient.
        """
        other = gradients_at(self.chain, [p.detach().clone() for p in self.chain.params], _another(self.chain))
        difference = [a - b for a, b in zip(_present(self.chain), other, strict=True)]
        along = dot(difference, self.direction) ** 2 / max(dot(self.direction, self.direction), _TINY)
        return Pair(dot(difference, difference) / (2 * self.count), along / 2)


class LangevinGauge(Gauge):
    """T + (εN/2) gᵀA g/dim."""

    power = 1

    def scaled(self, vector: list[Tensor]) -> list[Tensor]:
        """A v, if A has been estimated."""
        assert isinstance(self.sampler, Langevin)
        if self.group["step"] == 0:
            return vector
        params = list(self.chain.params)
        return self.sampler.preconditioner.drift(self.sampler.state, self.group, params, vector)

    def limit(self) -> float:
        """2/λ."""
        return 2 / max(self.largest, _TINY)

    @torch.no_grad()
    def read(self, variance: Pair) -> Pair:
        """From g."""
        grads = _present(self.chain)
        half = self.group["lr"] * self.group["num_data"] / 2
        return Pair(
            self.temperature + half * dot(grads, self.scaled(grads)) / self.count,
            self.temperature + half * dot(grads, self.direction) ** 2,
        )


class QuadraticGauge(Gauge):
    """What the sampler says of itself on a quadratic."""

    every_step = False
    _directions = 8  # for the mean curvature

    def __init__(self, chain: OneChain) -> None:
        super().__init__(chain)
        self.power = self.sampler.order or 1
        self.mean_curvature = math.nan
        self._roots: list[Tensor] | None = None  # A^{1/2}, if the sampler has a metric
        if all("metric" in self.sampler.state[p] for p in chain.params):
            self._roots = [self.sampler.state[p]["metric"] for p in chain.params]

    def _look_around(self, batch: Batch) -> None:
        """The mean curvature, by Hutchinson's estimate."""
        total = 0.0
        for number in range(1, self._directions + 1):
            z = self._times_root(_signs(self.chain, number))
            total += dot(z, self._second_derivative(z, batch)) / self.count
        self.mean_curvature = max(total / self._directions, 0.0)

    def scaled(self, vector: list[Tensor]) -> list[Tensor]:
        """A v."""
        return self._times_root(self._times_root(vector))

    @torch.no_grad()
    def gradient_variance(self) -> Pair:
        """In the metric: of A^{1/2} g."""
        if self._roots is None:
            return super().gradient_variance()
        other = gradients_at(self.chain, [p.detach().clone() for p in self.chain.params], _another(self.chain))
        difference = [a - b for a, b in zip(_present(self.chain), other, strict=True)]
        scaled = self._times_root(difference)
        return Pair(dot(scaled, scaled) / (2 * self.count), dot(difference, self.direction) ** 2 / 2)

    def _times_root(self, vector: list[Tensor]) -> list[Tensor]:
        return vector if self._roots is None else [m * v for m, v in zip(self._roots, vector, strict=True)]

    def limit(self) -> float:
        """That of the sampler."""
        return self.sampler.stability_limit(max(self.largest, _TINY))

    def read(self, variance: Pair) -> Pair:
        """From Var(g) and the curvatures."""
        return Pair(self._at(variance.mean, self.mean_curvature), self._at(variance.stiffest, self.curvature))

    def _at(self, variance: float, curvature: float) -> float:
        share = min((self.group["lr"] / self.sampler.stability_limit(max(curvature, _TINY))) ** self.power, 0.999)
        return float((self.temperature + self.sampler.gradient_noise_temperature(variance)) / (1 - share))


def gauge(chain: OneChain) -> Gauge:
    """The gauge for the chain's sampler."""
    return LangevinGauge(chain) if isinstance(chain.stepper, Langevin) else QuadraticGauge(chain)


def _present(chain: OneChain) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in chain.params]


def _another(chain: OneChain) -> Batch:
    """Another mini-batch of the run's size."""
    if isinstance(chain.batches, LoaderBatches):
        return _on_device(chain, chain.batches.fetch(chain.numbers[0], chain.step))
    return fetch_probe(chain, getattr(chain.batches, "batch_size", 1), 0)


def _batch(chain: OneChain) -> Batch:
    """Some examples, for second derivatives."""
    if isinstance(chain.batches, LoaderBatches):
        return _another(chain)
    size = max(getattr(chain.batches, "batch_size", 1), _EXAMPLES)
    return fetch_probe(chain, min(size, chain.batches.num_data or size), 1)


def _on_device(chain: OneChain, batch: Batch) -> Batch:
    x, y = tree_map(lambda t: t.to(chain.params[0].device), batch)
    return x, y


def _signs(chain: OneChain, number: int) -> list[Tensor]:
    sizes = [p.numel() for p in chain.params]
    where: Any = {"seed": chain.seed, "chain": number, "step": chain.step, "stream": random.Stream.SIGNS}
    drawn = random.normal(sum(sizes), **where, device=chain.params[0].device)
    flat = torch.where(drawn < 0, -1.0, 1.0)
    return [part.reshape(p.shape).to(p) for part, p in zip(torch.split(flat, sizes), chain.params, strict=True)]


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Over all tensors."""
    return float(sum((u * v).sum(dtype=torch.float64) for u, v in zip(a, b, strict=True)))


def _norm(a: list[Tensor]) -> float:
    return math.sqrt(dot(a, a))

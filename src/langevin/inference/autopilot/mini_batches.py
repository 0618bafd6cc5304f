"""Rate and momentum of SGHMC with mini-batches, from the noise of their gradients.

All is in the metric of the posterior's scales (`scales`), in which a typical curvature of U is 1. With ℓ the rate,
D = −log(momentum), λ a curvature and n = N² Var(g) the noise of the gradient of U along a direction,

    T̂ = (T + q n)/(1 − ℓ²λ/4),    q = (ℓ²/4) coth(D/2),

and chains relax, where it is 1, in about 1/(2q) steps. So ℓ²λ/4 is at most a quarter of the tolerance along the
stiffest direction, which bounds the energy error of a step, and q is at most what heats the hottest tensor by the rest.
Along the stiffest direction n is much larger, since the noise of gradients has the shape of the
curvature, and no diagonal metric mends that (a thermostat neither: its friction is by weight). A rate that keeps this
direction within twice the tolerance too is up to a hundred times smaller, so it is taken only if the budget has the
steps for it: q is as small as some relaxation times within the budget allow, and what is to be expected is said.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.core.batches import Batch, Batches, LoaderBatches, batch_size_of
from langevin.core.devices import on_device
from langevin.core.posterior import Posterior
from langevin.inference.chains import Weights
from langevin.inference.heat import dot
from langevin.inference.one_chain import OneChain
from langevin.inference.probe import fetch_probe, gradients_at
from langevin.inference.steppers import sampler_factory

TOLERANCE = 0.1
_STIFFEST = 2.0  # tolerances of the stiffest direction
_BY_STEP = 0.25  # of the tolerance, for the energy error; the rest is for noise
_RELAXATIONS = 10.0  # within the budget, to be slower than the hottest tensor allows
_MOMENTUM = (0.37, 0.9)  # D from 1 to 0.1: beyond 1 friction only slows the chain down
_PAIRS = 12  # of gradients
_POWER_ITERATIONS = 6
_EXAMPLES = 256  # of a second derivative
_DIFFERENCE = 0.01  # of a finite difference, over the root mean square of the weights
_TINY = 1e-30


class Noise(NamedTuple):
    """The noise n of the gradient of U in the metric, and the curvature of U along the stiffest direction."""

    mean: float  # over all weights
    by_tensor: dict[str, float]
    stiffest: float
    curvature: float
    example_gradients: int  # that it took to measure


class Tuned(NamedTuple):
    """Rate and momentum for a noise at a temperature, and the temperatures that are to be expected, relative to it."""

    lr: float
    momentum: float
    noise: Noise
    temperature: float

    @property
    def hottest_tensor(self) -> str:
        """Its name."""
        return max(self.noise.by_tensor, key=lambda each: self.noise.by_tensor[each])

    @property
    def mean(self) -> float:
        """Over all weights."""
        return self._expected(self.noise.mean, 1.0)

    @property
    def hottest(self) -> float:
        """Of a tensor."""
        return self._expected(self.noise.by_tensor[self.hottest_tensor], 1.0)

    @property
    def stiffest(self) -> float:
        """Along the stiffest direction."""
        return self._expected(self.noise.stiffest, self.noise.curvature)

    def at_most(self, lr: float) -> Tuned:
        """With no larger rate."""
        return self._replace(lr=min(self.lr, lr))

    def _expected(self, heat: float, curvature: float) -> float:
        q = self.lr**2 / 4 * (1 + self.momentum) / (1 - self.momentum)
        return (1 + q * heat / self.temperature) / (1 - self.lr**2 * curvature / 4)

    def __str__(self) -> str:
        return (
            f"expected temperature, of T: {self.mean:.2f}, of {self.hottest_tensor} {self.hottest:.2f}, along the "
            f"stiffest direction {self.stiffest:.2g}"
        )


def tune(
    noise: Noise, temperature: float, steps: int, *, momentum: float | None = None, tolerance: float = TOLERANCE
) -> Tuned:
    """For a budget of so many steps of a chain; `momentum`, if it is given."""
    allowed = (1 - _BY_STEP) * tolerance * temperature
    by_tensor = allowed / max(*noise.by_tensor.values(), _TINY)
    by_stiffest = _STIFFEST * allowed / max(noise.stiffest, _TINY)
    q = min(by_tensor, max(by_stiffest, _RELAXATIONS / (2 * steps)))
    squared = 4 * _BY_STEP * tolerance / max(noise.curvature, 1.0)  # ℓ², by the curvature
    if momentum is None:
        least, most = (math.tanh(-math.log(m) / 2) for m in reversed(_MOMENTUM))
        friction = min(max(squared / (4 * q), least), most)  # tanh(D/2)
        momentum = (1 - friction) / (1 + friction)
    friction = (1 - momentum) / (1 + momentum)
    return Tuned(math.sqrt(min(squared, 4 * q * friction)), momentum, noise, temperature)


@torch.no_grad()
def measure_noise(
    posterior: Posterior, batches: Batches, weights: Weights, metric: Sequence[Tensor], seed: int
) -> Noise:
    """At these weights; a function of the arguments, unless batches are those of a DataLoader."""
    posterior = copy.deepcopy(posterior)
    make = sampler_factory("SGHMC", {"lr": 1e-12})
    chain = OneChain(posterior, [0], [weights], batches, make, None, seed=seed)
    theta = [p.detach().clone() for p in chain.params]
    size, examples = _sizes(batches)
    spent = 0

    def gradients(values: list[Tensor], batch: Batch) -> list[Tensor]:
        nonlocal spent
        spent += batch_size_of(batch[1])
        return [posterior.num_data * g for g in gradients_at(chain, values, batch)]

    def fetch(count: int, which: int) -> Batch:
        return _next(chain) if isinstance(batches, LoaderBatches) else fetch_probe(chain, count, which)

    some = fetch(examples, 1)
    direction, curvature = _stiffest(theta, metric, lambda values: gradients(values, some))
    squares = [torch.zeros_like(t, dtype=torch.float64) for t in theta]
    along = 0.0
    for number in range(1, _PAIRS + 1):
        chain.step = number
        pair = [gradients(theta, fetch(size, which)) for which in (0, 1)]
        difference = [m * (a - b) for m, a, b in zip(metric, *pair, strict=True)]
        for total, d in zip(squares, difference, strict=True):
            total += d.double().square() / (2 * _PAIRS)
        along += dot(difference, direction) ** 2 / (2 * _PAIRS)
    by_tensor = {name: float(total.mean()) for name, total in zip(chain.names, squares, strict=True) if total.numel()}
    count = sum(total.numel() for total in squares)
    return Noise(float(sum(total.sum() for total in squares)) / count, by_tensor, along, curvature, spent)


def noise_gradients(batch_size: int, num_data: int) -> int:
    """Example-gradients that `measure_noise` takes."""
    return (1 + 2 * _POWER_ITERATIONS) * min(max(batch_size, _EXAMPLES), num_data) + 2 * _PAIRS * batch_size


def _sizes(batches: Batches) -> tuple[int, int]:
    """Examples of a mini-batch, and of a second derivative."""
    size = int(getattr(batches, "batch_size", 1))
    return size, min(max(size, _EXAMPLES), batches.num_data or size)


def _next(chain: OneChain) -> Batch:
    """Of a DataLoader."""
    x, y = on_device(chain.batches.fetch(chain.numbers[0], chain.step), chain.params[0].device)
    return x, y


def _stiffest(
    theta: list[Tensor], metric: Sequence[Tensor], gradients: Callable[[list[Tensor]], list[Tensor]]
) -> tuple[list[Tensor], float]:
    """The direction of the largest curvature, of length 1 in the metric, and that curvature, by power iteration."""
    start = gradients(theta)
    direction = _unit([m * g for m, g in zip(metric, start, strict=True)])
    length = _DIFFERENCE * math.sqrt(dot(theta, theta) / sum(t.numel() for t in theta)) or _DIFFERENCE
    curvature = 0.0
    for _ in range(_POWER_ITERATIONS):
        move = [m * v for m, v in zip(metric, direction, strict=True)]
        step = length / max(math.sqrt(dot(move, move)), _TINY)
        plus, minus = (gradients([t + sign * step * d for t, d in zip(theta, move, strict=True)]) for sign in (1, -1))
        image = [m * (a - b) / (2 * step) for m, a, b in zip(metric, plus, minus, strict=True)]
        curvature = max(curvature, abs(dot(direction, image)))
        direction = _unit(image)
    return direction, curvature


def with_metric(tensors: Mapping[str, Tensor], names: Sequence[str], metric: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint with another metric."""
    return dict(tensors) | {f"state/{name}/metric": m.cpu() for name, m in zip(names, metric, strict=True)}


def _unit(a: list[Tensor]) -> list[Tensor]:
    norm = max(math.sqrt(dot(a, a)), _TINY)
    return [v / norm for v in a]

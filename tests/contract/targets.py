"""Targets with known answers, simulated in many independent replicates so that error bars need no autocorrelation.

A parameter of shape (replicates, d) under an energy that is a sum over its rows is that many independent chains for any
sampler that treats weights one by one. The time average of each row is one independent draw; the standard error of
their mean is honest whatever the chain's memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.samplers import SAMPLERS, Sampler

NUM_DATA = 50
FRACTION = {1: 0.05, 2: 0.2}  # of the stability limit, by order: the bias is then about 5 % and 4 %
SIGMAS = 4.0

TARGETED = [name for name, method in SAMPLERS.items() if method.target == "posterior" and method.stackable]
LAYERWISE = [name for name, method in SAMPLERS.items() if method.target == "posterior" and not method.stackable]


def make(method: type[Sampler], params, *, temperature: float = 1.0, **options) -> Sampler:
    if method.target != "none":
        options["temperature"] = temperature
    return method(params, **{"num_data": NUM_DATA, "seed": 1, **options})


def limit(method: type[Sampler], curvature: float, **options) -> float:
    probe = make(method, [torch.nn.Parameter(torch.zeros(1))], lr=1e-3, **options)
    return probe.stability_limit(curvature)


@dataclass
class Moments:
    """Averages over time of each replicate: (replicates, d) and (replicates, d, d)."""

    mean: Tensor
    second: Tensor

    @staticmethod
    def estimate(values: Tensor) -> tuple[Tensor, Tensor]:
        return values.mean(0), values.std(0) / math.sqrt(len(values))


def simulate(sampler: Sampler, parameter: Tensor, precision: Tensor, *, burn_in: int, steps: int) -> Moments:
    """Sample exp(−N ½ θᵀΛθ / T): the gradient of the mean loss is Λθ."""

    def step() -> None:
        parameter.grad = parameter.detach() @ precision
        sampler.step()

    for _ in range(burn_in):
        step()
    sampler.freeze()
    mean = torch.zeros_like(parameter)
    second = torch.zeros(*parameter.shape, parameter.shape[1], dtype=parameter.dtype)
    for _ in range(steps):
        step()
        theta = parameter.detach()
        mean += theta / steps
        second += theta[:, :, None] * theta[:, None, :] / steps
    return Moments(mean, second)


def start(precision: Tensor, temperature: float, replicates: int) -> torch.nn.Parameter:
    """Points half as far out as the target's: near enough for thermostats, which remember a fall for 1/κ steps, not at
    the optimum, where RMSprop knows no scale, and a sampler that stays there is caught."""
    root = torch.linalg.cholesky(torch.linalg.inv(precision) * temperature / NUM_DATA)
    normal = torch.randn(replicates, len(precision), generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.nn.Parameter(0.5 * normal @ root.T)


def ill_conditioned() -> Tensor:
    """A precision of condition number 100, not aligned with the axes."""
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    return rotation @ torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)) @ rotation.T

"""Targets with known moments, simulated in many independent replicates, whose errors need no autocorrelation times.

A parameter of shape (replicates, d) with an energy that is a sum over its rows is a set of independent chains for any
element-wise sampler. The time averages of the rows are independent, so the standard error of their mean is valid for
any autocorrelation.
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

FULL_BATCH = [name for name, sampler_class in SAMPLERS.items() if sampler_class.full_batch]
TARGETED = [
    name
    for name, sampler_class in SAMPLERS.items()
    if sampler_class.target == "posterior" and sampler_class.stackable and name not in FULL_BATCH
]
LAYERWISE = [
    name
    for name, sampler_class in SAMPLERS.items()
    if sampler_class.target == "posterior" and not sampler_class.stackable
]


def make(sampler_class: type[Sampler], params, *, temperature: float = 1.0, **options) -> Sampler:
    if sampler_class.target != "none":
        options["temperature"] = temperature
    return sampler_class(params, **{"num_data": NUM_DATA, "seed": 1, **options})


def limit(sampler_class: type[Sampler], curvature: float, **options) -> float:
    probe = make(sampler_class, [torch.nn.Parameter(torch.zeros(1))], lr=1e-3, **options)
    return probe.stability_limit(curvature)


@dataclass
class Moments:
    """Time averages of each replicate: (replicates, d) and (replicates, d, d)."""

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
    """Draws with half the standard deviation of the target.

    Not the optimum, where RMSprop has no scale and a sampler that does not move could pass; and not far outside, since
    thermostats relax over 1/κ steps.
    """
    root = torch.linalg.cholesky(torch.linalg.inv(precision) * temperature / NUM_DATA)
    normal = torch.randn(replicates, len(precision), generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.nn.Parameter(0.5 * normal @ root.T)


def ill_conditioned() -> Tensor:
    """A precision matrix of condition number 100, not aligned with the axes."""
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    return rotation @ torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)) @ rotation.T

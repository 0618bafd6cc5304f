"""Regression with homoscedastic Gaussian noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from langevin.core.likelihoods.base import (
    LIKELIHOODS,
    ValueLikelihood,
    in_single_precision,
    like_output,
    per_example,
)
from langevin.core.likelihoods.scales import set_log_scale
from langevin.core.random import Source


@LIKELIHOODS.register
class Gaussian(ValueLikelihood, nn.Module):
    """Regression: y = output + noise of standard deviation `std`, the dimensions of y independent.

    With `sampled=True` log(std) is a parameter of the posterior, named `likelihood.log_std`, with the given std as its
    initial value. Its prior is the posterior's prior for that name: under `Gaussian(std=1)` the noise is log-normal
    around 1, which suits standardized targets. Give a std of the size that you expect: `lv.sample` scales the learning
    rate of log(std) by it, so that the noise mixes as fast as the weights.
    """

    log_std: Tensor

    def __init__(self, std: float, *, sampled: bool = False) -> None:
        nn.Module.__init__(self)
        if not (math.isfinite(std) and std > 0):
            raise ValueError(f"The standard deviation must be positive; given std={std}. Write Gaussian(std=0.1).")
        set_log_scale(self, "log_std", std, sampled)
        self._config = {"std": std, "sampled": sampled}

    @property
    def bounded_curvature(self) -> bool:
        """Whether log p has a bounded curvature along the output: 1/σ², unless σ is sampled."""
        return not self._config["sampled"]

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """Mean and standard deviation."""
        return output, torch.exp(self.log_std).to(output.dtype).expand_as(output)

    def distribution(self, *parameters: Tensor) -> Distribution:
        """N(mean, std²)."""
        return Normal(parameters[0], parameters[1], validate_args=False)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − output)/σ)² − log σ − ½log 2π over the dimensions of y."""
        output = in_single_precision(output)
        residual = (like_output(repr(self), output, target) - output) * torch.exp(-self.log_std)
        return per_example(-0.5 * residual.square() - self.log_std - 0.5 * math.log(2 * math.pi))

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """output + σ η."""
        return output + torch.exp(self.log_std) * source.normal(output)

    def output_fisher(self, output: Tensor) -> Tensor:
        """I/σ²."""
        size = output[0].numel()
        identity = torch.eye(size, dtype=output.dtype, device=output.device)
        return (torch.exp(-2 * self.log_std) * identity).expand(len(output), size, size)

    def noise_curvatures(self) -> dict[str, tuple[float, float]]:
        """Curvatures of the loss at the given std: along log(std), for each value of y, and along an output."""
        return {"log_std": (2.0, self._config["std"] ** -2)} if self._config["sampled"] else {}

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self._config)

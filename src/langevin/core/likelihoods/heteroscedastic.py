"""Regression with Gaussian noise whose scale is an output of the network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from langevin.core.likelihoods.base import LIKELIHOODS, like_output


@LIKELIHOODS.register
class HeteroscedasticGaussian:
    """Regression: y ~ N(mean, scale²), both outputs of the network, the dimensions of y independent.

    The network has twice as many outputs as y has values: along dimension 1 the means, then the raw scales r, with
    scale = softplus(r) + min_scale. Meant for standardized targets, where the noise is between `min_scale` and about 1.

    >>> HeteroscedasticGaussian().log_prob(torch.tensor([[0.0, 0.5408]]), torch.tensor([0.0]))  # scale 1: −log √(2π)
    tensor([-0.919...])
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        if not (math.isfinite(min_scale) and min_scale > 0):
            raise ValueError(
                f"The smallest scale must be positive; given min_scale={min_scale}. "
                f"Write HeteroscedasticGaussian(min_scale=1e-3)."
            )
        self.min_scale = min_scale

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − mean)/scale)² − log scale − ½log 2π over the dimensions of y."""
        mean, scale = self._mean_and_scale(output)
        residual = (like_output(f"{self!r}: mean and scale of every value", mean, target) - mean) / scale
        log_density = -0.5 * residual.square() - scale.log() - 0.5 * math.log(2 * math.pi)
        return log_density.flatten(1).sum(1)

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse targets that are not finite or whose spread is that of the smallest scale, and scales that overflow."""
        _, scale = self._mean_and_scale(output)
        if not bool(torch.isfinite(output).all() & torch.isfinite(scale).all()):
            raise ValueError(
                f"{self!r}: the model's outputs overflow (the largest scale is {float(scale.max()):.3g}). Standardize "
                f"the inputs, (x - x.mean(0)) / x.std(0), or start at smaller weights."
            )
        spread = float(target.double().std()) if target.numel() > 1 else math.inf
        if not math.isfinite(float(target.double().sum())) or spread < 10 * self.min_scale:
            raise ValueError(
                f"{self!r} needs finite targets with a standard deviation well above min_scale; given targets with "
                f"standard deviation {spread:.3g}. Standardize them: (y - y.mean()) / y.std()."
            )

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        mean, scale = self._mean_and_scale(output)
        return mean, scale.square()

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """mean + scale η."""
        mean, scale = self._mean_and_scale(output)
        return mean + scale * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag(1/scale², 2 (softplus′(r)/scale)²): mean and scale of a Gaussian are orthogonal parameters."""
        _, scale = self._mean_and_scale(output)
        slope = output.chunk(2, 1)[1].sigmoid()
        information = torch.cat([scale**-2, 2 * (slope / scale).square()], 1)
        return torch.diag_embed(information.flatten(1))

    def _mean_and_scale(self, output: Tensor) -> tuple[Tensor, Tensor]:
        if output.dim() < 2 or output.shape[1] % 2:
            raise ValueError(
                f"{self!r} needs a mean and a scale for every value of y: outputs of shape (batch, 2·values); the "
                f"model's output is {tuple(output.shape)}. For one target: nn.Linear(…, 2)."
            )
        output = output.to(torch.promote_types(output.dtype, torch.float32))  # under autocast it is in half precision
        mean, raw = output.chunk(2, 1)
        return mean, functional.softplus(raw) + self.min_scale

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"min_scale": self.min_scale}

    def __repr__(self) -> str:
        return f"HeteroscedasticGaussian(min_scale={self.min_scale})"

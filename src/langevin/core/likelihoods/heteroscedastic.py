"""Regression with Gaussian noise whose scale is an output of the network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.nn import functional

from langevin.core.likelihoods.base import (
    LIKELIHOODS,
    ValueLikelihood,
    diagonal_fisher,
    in_single_precision,
    like_output,
    per_example,
    refuse_overflow,
)


@LIKELIHOODS.register
class HeteroscedasticGaussian(ValueLikelihood):
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

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """Mean and scale."""
        if output.dim() < 2 or output.shape[1] % 2:
            raise ValueError(
                f"{self!r} needs a mean and a scale for every value of y: outputs of shape (batch, 2·values); the "
                f"model's output is {tuple(output.shape)}. For one target: nn.Linear(…, 2)."
            )
        mean, raw = in_single_precision(output).chunk(2, 1)
        return mean, functional.softplus(raw.contiguous()) + self.min_scale  # of a view it takes ten times longer

    def distribution(self, *parameters: Tensor) -> Distribution:
        """N(mean, scale²)."""
        return Normal(parameters[0], parameters[1], validate_args=False)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − mean)/scale)² − log scale − ½log 2π over the dimensions of y."""
        mean, scale = self.parameters_of(output)
        residual = (like_output(f"{self!r}, half of whose outputs are scales", mean, target) - mean) / scale
        return per_example(-0.5 * residual.square() - scale.log() - 0.5 * math.log(2 * math.pi))

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse outputs that overflow, and targets that are not finite or hardly vary."""
        refuse_overflow(self, "mean or the scale", torch.cat(self.parameters_of(output)))
        spread = float(target.double().std()) if target.numel() > 1 else math.inf
        if not bool(torch.isfinite(target).all()) or spread < 10 * self.min_scale:
            raise ValueError(
                f"{self!r} needs finite targets with a standard deviation well above min_scale; given targets with "
                f"standard deviation {spread:.3g}. Standardize them: (y - y.mean()) / y.std()."
            )

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag(1/scale², 2 (softplus′(r)/scale)²): mean and scale of a Gaussian are orthogonal parameters."""
        _, scale = self.parameters_of(output)
        slope = output.chunk(2, 1)[1].sigmoid()
        return diagonal_fisher(torch.cat([scale**-2, 2 * (slope / scale).square()], 1))

    def num_outputs(self, target: Tensor) -> int:
        """Two for every value of y."""
        return 2 * target[0].numel()

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"min_scale": self.min_scale}

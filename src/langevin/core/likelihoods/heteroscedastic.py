"""Regression with noise whose scale is an output of the network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.nn import functional

from langevin.core.likelihoods import families
from langevin.core.likelihoods.base import (
    LIKELIHOODS,
    ValueLikelihood,
    diagonal_fisher,
    in_single_precision,
    like_output,
    per_example,
    refuse_overflow,
)


class PredictedScale(ValueLikelihood):
    """Abstract: y = mean + scale · noise, mean and scale outputs of the network, the dimensions of y independent.

    The network has twice as many outputs as y has values: along dimension 1 the means, then the raw scales r, with
    scale = softplus(r) + min_scale. Meant for standardized targets, where the noise is between `min_scale` and about 1.
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        if not (math.isfinite(min_scale) and min_scale > 0):
            raise ValueError(
                f"The smallest scale must be positive; given min_scale={min_scale}. "
                f"Write {type(self).__name__}(min_scale=1e-3)."
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

    def residual_and_scale(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(y − mean)/scale, and scale."""
        mean, scale = self.parameters_of(output)
        return (like_output(f"{self!r}, half of whose outputs are scales", mean, target) - mean) / scale, scale

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse outputs that overflow, and targets that are not finite or hardly vary."""
        refuse_overflow(self, "mean or the scale", torch.cat(self.parameters_of(output)))
        spread = float(target.double().std()) if target.numel() > 1 else math.inf
        if not bool(torch.isfinite(target).all()) or spread < 10 * self.min_scale:
            raise ValueError(
                f"{self!r} needs finite targets with a standard deviation well above min_scale; given targets with "
                f"standard deviation {spread:.3g}. Standardize them: (y - y.mean()) / y.std()."
            )

    def diagonal_of(self, output: Tensor, mean: float, log_scale: float) -> Tensor:
        """The Fisher information of the outputs, by those of mean and log scale where the scale is 1."""
        _, scale = self.parameters_of(output)
        slope = output.chunk(2, 1)[1].sigmoid()
        return diagonal_fisher(torch.cat([mean * scale**-2, log_scale * (slope / scale).square()], 1))

    def num_outputs(self, target: Tensor) -> int:
        """Two for every value of y."""
        return 2 * target[0].numel()

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"min_scale": self.min_scale}

    def weighted_log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p, of each example times its scale over their mean: gradients of a mean that are easier to descend.

        In those of log p examples of large scales hardly count, so what is fitted badly at first stays so, and is taken
        for noise (Seitzer et al. 2022, with β = ½).
        """
        _, scale = self.parameters_of(output.detach())
        weight = scale.flatten(1).mean(1)
        return self.log_prob(output, target) * (weight / weight.mean())


@LIKELIHOODS.register
class HeteroscedasticGaussian(PredictedScale):
    """Regression: y ~ N(mean, scale²), both outputs of the network, the dimensions of y independent.

    The network has twice as many outputs as y has values: along dimension 1 the means, then the raw scales r, with
    scale = softplus(r) + min_scale. Meant for standardized targets, where the noise is between `min_scale` and about 1.

    >>> HeteroscedasticGaussian().log_prob(torch.tensor([[0.0, 0.5408]]), torch.tensor([0.0]))  # scale 1: −log √(2π)
    tensor([-0.919...])
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__(min_scale)

    def distribution(self, *parameters: Tensor) -> Distribution:
        """N(mean, scale²)."""
        return Normal(parameters[0], parameters[1], validate_args=False)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − mean)/scale)² − log scale − ½log 2π over the dimensions of y."""
        residual, scale = self.residual_and_scale(output, target)
        return per_example(-0.5 * residual.square() - scale.log() - 0.5 * math.log(2 * math.pi))

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag(1/scale², 2 (softplus′(r)/scale)²): mean and scale of a Gaussian are orthogonal parameters."""
        return self.diagonal_of(output, 1.0, 2.0)


@LIKELIHOODS.register
class HeteroscedasticStudentT(PredictedScale):
    """Regression: y = mean + scale · t with Student's t of `df` degrees of freedom, mean and scale outputs.

    Outputs are those of `HeteroscedasticGaussian`. A predicted scale can be far too small for a test example; with
    Gaussian noise one such example costs ½(residual/scale)² nats, here (df + 1) log(residual/scale). The standard
    deviation of the noise is scale·√(df/(df − 2)).

    >>> HeteroscedasticStudentT(df=4).log_prob(torch.tensor([[0.0, 0.5408]]), torch.tensor([0.0]))  # scale 1: log ⅜
    tensor([-0.981...])
    """

    def __init__(self, df: float = 4.0, *, min_scale: float = 1e-3) -> None:
        super().__init__(min_scale)
        if not (math.isfinite(df) and df > 2):
            raise ValueError(
                f"df must be above 2, so that y has a variance; given df={df}. Write HeteroscedasticStudentT(df=4.0)."
            )
        self.df = df

    def distribution(self, *parameters: Tensor) -> Distribution:
        """Student's t."""
        mean, scale = parameters
        return families.StudentT(torch.full_like(mean, self.df), mean, scale, validate_args=False)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½(df + 1) log(1 + ((y − mean)/scale)²/df) − log scale + log Γ(½(df + 1)) − log Γ(½df) − ½log(π df)."""
        residual, scale = self.residual_and_scale(output, target)
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(0.5 * self.df) - 0.5 * math.log(math.pi * self.df)
        return per_example(constant - half * torch.log1p(residual.square() / self.df) - scale.log())

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag((df + 1)/(df + 3)/scale², 2 df/(df + 3) (softplus′(r)/scale)²)."""
        return self.diagonal_of(output, (self.df + 1) / (self.df + 3), 2 * self.df / (self.df + 3))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"df": self.df, **super().config()}

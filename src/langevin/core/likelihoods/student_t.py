"""Regression with heavy-tailed noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from langevin.core.likelihoods import families
from langevin.core.likelihoods.base import LIKELIHOODS, ValueLikelihood, diagonal_fisher, in_single_precision
from langevin.core.likelihoods.scales import set_log_scale


@LIKELIHOODS.register
class StudentT(ValueLikelihood, nn.Module):
    """Regression: y = output + scale · t, with Student's t of `df` degrees of freedom: outliers pull less.

    With `sampled=True` log(scale) is a parameter of the posterior, named `likelihood.log_scale`, with the given scale
    as its initial value. The standard deviation of the noise is scale·√(df/(df − 2)).
    """

    log_scale: Tensor

    def __init__(self, scale: float, *, df: float = 4.0, sampled: bool = False) -> None:
        nn.Module.__init__(self)
        if not (math.isfinite(scale) and scale > 0 and math.isfinite(df) and df > 2):
            raise ValueError(
                f"The scale must be positive and df above 2, so that y has a variance; given scale={scale}, df={df}. "
                f"Write StudentT(scale=0.1, df=4.0)."
            )
        set_log_scale(self, "log_scale", scale, sampled)
        self.df = df
        self._config = {"scale": scale, "df": df, "sampled": sampled}

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """Location and scale."""
        output = in_single_precision(output)
        return output, torch.exp(self.log_scale).to(output.dtype).expand_as(output)

    def distribution(self, *parameters: Tensor) -> Distribution:
        """Student's t."""
        return families.StudentT(
            torch.full_like(parameters[0], self.df), parameters[0], parameters[1], validate_args=False
        )

    def output_fisher(self, output: Tensor) -> Tensor:
        """(df + 1)/(df + 3)/scale² for every output."""
        information = (self.df + 1) / (self.df + 3) * torch.exp(-2 * self.log_scale)
        return diagonal_fisher(information.expand_as(output))

    def noise_curvatures(self) -> dict[str, tuple[float, float]]:
        """Curvatures of the loss at the given scale: along log(scale), for each value of y, and along an output."""
        along = 2 * self.df / (self.df + 3)
        output = (self.df + 1) / (self.df + 3) / self._config["scale"] ** 2
        return {"log_scale": (along, output)} if self._config["sampled"] else {}

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self._config)

"""Counts: 0, 1, 2, …"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from langevin.core.likelihoods import families
from langevin.core.likelihoods.base import (
    LIKELIHOODS,
    ValueLikelihood,
    diagonal_fisher,
    in_single_precision,
    refuse_outside,
    refuse_overflow,
)
from langevin.core.likelihoods.scales import set_log_scale


@LIKELIHOODS.register
class Poisson(ValueLikelihood):
    """Counts with mean and variance exp(output).

    >>> Poisson().log_prob(torch.zeros(2), torch.tensor([0, 1]))  # rate 1: e⁻¹ both
    tensor([-1., -1.])
    """

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """The rate."""
        return (in_single_precision(output).exp(),)

    def distribution(self, *parameters: Tensor) -> Distribution:
        """Poisson(rate)."""
        return families.Poisson(parameters[0], validate_args=False)

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse targets that are not counts, and rates that overflow."""
        _check_counts(self, target)
        refuse_overflow(self, "rate exp(output)", *self.parameters_of(output))

    def output_fisher(self, output: Tensor) -> Tensor:
        """The rate."""
        return diagonal_fisher(*self.parameters_of(output))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {}


@LIKELIHOODS.register
class NegativeBinomial(ValueLikelihood, nn.Module):
    """Counts with mean μ = exp(output) and variance μ + dispersion·μ²; as the dispersion goes to 0, Poisson.

    With `sampled=True` log(dispersion) is a parameter of the posterior, named `likelihood.log_dispersion`, with the
    given dispersion as its initial value.
    """

    log_dispersion: Tensor

    def __init__(self, dispersion: float = 1.0, *, sampled: bool = True) -> None:
        nn.Module.__init__(self)
        if not (math.isfinite(dispersion) and dispersion > 0):
            raise ValueError(
                f"The dispersion must be positive; given {dispersion}. Write NegativeBinomial(dispersion=0.5), or "
                f"Poisson() for counts without overdispersion."
            )
        set_log_scale(self, "log_dispersion", dispersion, sampled)
        self._config = {"dispersion": dispersion, "sampled": sampled}

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """The number of failures r = 1/dispersion, and the logits log(μ/r)."""
        output = in_single_precision(output)
        return torch.exp(-self.log_dispersion).to(output.dtype).expand_as(output), output + self.log_dispersion

    def distribution(self, *parameters: Tensor) -> Distribution:
        """NegativeBinomial(r, logits)."""
        return families.NegativeBinomial(parameters[0], logits=parameters[1], validate_args=False)

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse targets that are not counts, and means that overflow."""
        _check_counts(self, target)
        refuse_overflow(self, "mean exp(output)", in_single_precision(output).exp())

    def output_fisher(self, output: Tensor) -> Tensor:
        """μ/(1 + dispersion·μ)."""
        mean = in_single_precision(output).exp()
        return diagonal_fisher(mean / (1 + mean * torch.exp(self.log_dispersion)))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self._config)


def _check_counts(likelihood: Any, target: Tensor) -> None:
    counts = torch.isfinite(target) & (target >= 0) & (target == target.floor() if target.is_floating_point() else True)
    refuse_outside(
        likelihood, target, counts, "counts, 0, 1, 2, …; for real values write Gaussian(std=0.5, sampled=True)"
    )

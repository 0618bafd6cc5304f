"""Distributions of torch with the cumulative distribution function that torch lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributions


class StudentT(distributions.StudentT):
    """Student's t; the sum and the mean over samples of its cdf are in double precision.

    Made of tensors alone: torch's own copies numbers to the device whenever it is made, which makes the host wait.
    """

    def __init__(self, df: Tensor, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = torch.broadcast_tensors(df, loc, scale)  # type: ignore[no-untyped-call]
        self._chi2 = distributions.Gamma(0.5 * self.df, torch.full_like(self.df, 0.5), validate_args=validate_args)  # type: ignore[assignment]
        distributions.Distribution.__init__(self, self.df.shape, validate_args=validate_args)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value)."""
        from scipy.special import stdtr

        return _by_scipy(stdtr, self.df, (value - self.loc) / self.scale)


class Poisson(distributions.Poisson):
    """Counts with a rate."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value) = Q(⌊value⌋ + 1, rate)."""
        counts, rate = torch.broadcast_tensors(value.floor(), self.rate.to(value.dtype))  # type: ignore[no-untyped-call]
        below: Tensor = torch.special.gammaincc(counts.clamp_min(0) + 1, rate)
        return torch.where(counts < 0, 0.0, below)


class NegativeBinomial(distributions.NegativeBinomial):
    """Counts whose variance exceeds their mean."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value) = I_{1−p}(r, ⌊value⌋ + 1)."""
        from scipy.special import betainc

        counts = value.floor()
        below = _by_scipy(betainc, self.total_count, counts.clamp_min(0) + 1, torch.sigmoid(-self.logits))
        return torch.where(counts < 0, 0.0, below)


class Bernoulli(distributions.Bernoulli):
    """Labels 0 and 1."""

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value)."""
        return torch.where(value < 0, 0.0, torch.where(value < 1, 1 - self.probs, 1.0))


def _by_scipy(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """A special function that torch does not have, in double precision."""
    arrays = [argument.detach().cpu().double().numpy() for argument in arguments]
    return torch.from_numpy(function(*arrays)).to(arguments[-1].device)

"""Distributions of torch with the cumulative distribution function that torch lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributions

_EVEN = (2.0, 4.0, 6.0, 8.0, 10.0)  # degrees of freedom


class StudentT(distributions.StudentT):
    """Student's t; the sum and the mean over samples of its cdf are in double precision.

    Made of tensors alone: torch's own copies numbers to the device whenever it is made, which makes the host wait.
    """

    def __init__(self, df: Tensor, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = torch.broadcast_tensors(df, loc, scale)  # type: ignore[no-untyped-call]
        self._chi2 = distributions.Gamma(0.5 * self.df, torch.full_like(self.df, 0.5), validate_args=validate_args)  # type: ignore[assignment]
        distributions.Distribution.__init__(self, self.df.shape, validate_args=validate_args)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value); where the degrees of freedom are even and few a sum, which is several times faster."""
        from scipy.special import stdtr

        value = (value - self.loc) / self.scale
        df = float(self.df.reshape(-1)[0]) if self.df.numel() else 0.0
        if df in _EVEN and bool((self.df == df).all()):
            return _even_student_t(int(df), value.double())
        return _by_scipy(stdtr, self.df, value)


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


def _even_student_t(df: int, t: Tensor) -> Tensor:
    """½ + x/2 Σ_{k<df/2} C(2k, k)/4ᵏ (1 − x²)ᵏ with x = t/√(df + t²), to 1e-15."""
    square = t.square()
    u = df / (df + square)  # 1 − x²
    series, term = torch.ones_like(t), torch.ones_like(t)
    for k in range(1, df // 2):
        term = term * u * ((2 * k - 1) / (2 * k))
        series = series + term
    return 0.5 + 0.5 * (t / (df + square).sqrt()) * series


def _by_scipy(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """A special function that torch does not have, in double precision."""
    arrays = [argument.detach().cpu().double().numpy() for argument in arguments]
    return torch.from_numpy(function(*arrays)).to(arguments[-1].device)

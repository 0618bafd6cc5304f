"""Statistics of correlated sequences: means with standard errors, and effective sample sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_BLOCK = 1 << 18  # numbers


class Estimate(NamedTuple):
    """A mean over a chain and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.error:.1g}" if math.isfinite(self.error) else f"{self.mean:.3g} ± unknown"


def mean_and_error(values: Sequence[float]) -> Estimate:
    """Mean of a correlated sequence with its standard error by batch means (batches of ⌊√n⌋).

    With fewer than four values the error is NaN.
    """
    series = np.asarray([v for v in values if math.isfinite(v)])
    n = len(series)
    if n < 4:
        return Estimate(float(series.mean()) if n else math.nan, math.nan)
    length = math.isqrt(n)
    batches = series[n % length :].reshape(-1, length).mean(1)
    return Estimate(float(series.mean()), float(batches.std(ddof=1) / math.sqrt(len(batches))))


def effective_sample_size(draws: Tensor) -> Tensor:
    """essᵢ = n/(1 + 2Σ_k ρ_k) of each column, summed to the last lag before the autocorrelation turns negative.

    `draws` is (n,) or (n, …). Conservative for samplers with momentum, whose negative autocorrelations would raise
    it again. It is 0 for a constant column.
    """
    n = len(draws)
    if n < 4:
        raise ValueError(f"An effective sample size needs at least 4 draws; given {n}.")
    centred = (draws - draws.mean(0)).double()
    spectrum = torch.fft.rfft(centred, n=2 * n, dim=0)
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * n, dim=0)[:n] / n
    rho = covariance / covariance[0].clamp_min(torch.finfo(torch.float64).tiny)
    before_negative = (rho < 0).cumsum(0) == 0
    time = 1 + 2 * (rho * before_negative)[1:].sum(0)
    return torch.where(covariance[0] > 0, n / time, torch.zeros_like(time))


def batch_means_ess(draws: Tensor) -> Tensor:
    """s²/λ² of each column (n,) or (n, …), λ² the variance of its mean by batch means, batches of ⌊√n⌋ draws.

    It accounts for negative autocorrelation, unlike `effective_sample_size`; for samplers with momentum. It is 0 for a
    constant column.
    """
    n = len(draws)
    if n < 4:
        raise ValueError(f"An effective sample size needs at least 4 draws; given {n}.")
    batches = _batch_means(draws.double())
    variance, of_mean = draws.double().var(0), batches.var(0) / len(batches)
    return torch.where(variance > 0, variance / of_mean.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def mess_diagonal(draws: Tensor) -> float:
    """mESS of (n, p) draws, diagonal: the geometric mean of essᵢ."""
    return float(effective_sample_size(draws).log().mean().exp())


def mess_full(draws: Tensor) -> float:
    """mESS of (n, p) or (chains, n, p) draws, full: n (|Λ|/|Σ|)^{1/p} (Vats, Flegal & Jones 2019), for few quantities.

    Λ is the covariance of the draws, Σ/n that of their mean by batch means (batches of ⌊√n⌋ draws), both within
    chains; n counts the draws of all chains. With ν degrees of freedom in Σ it is about e^{p/2ν} too large, so it is
    reported as NaN unless ν ≥ 4p.
    """
    chains = (draws if draws.dim() == 3 else draws[None]).double()
    count, n, p = chains.shape
    if n < 4:
        raise ValueError(f"An effective sample size needs at least 4 draws; given {n}.")
    batches = torch.stack([_batch_means(chain) for chain in chains])
    if count * (batches.shape[1] - 1) < 4 * p:
        return float("nan")
    length = n // batches.shape[1]
    log_det = torch.linalg.slogdet(torch.stack([_covariance(chains), length * _covariance(batches)])).logabsdet
    return float(count * n * torch.exp((log_det[0] - log_det[1]) / p))


def dot_of_difference(x: Tensor, a: Tensor, g: Tensor, chains: int = 1) -> Tensor:
    """(x − a)·g of each chain along the first axis, (chains,), in blocks: a large network needs no memory for it."""
    rows = (t.reshape(chains, -1) for t in (x, a, g))
    total = torch.zeros(chains, dtype=torch.float64, device=x.device)
    for xs, as_, gs in zip(*(torch.split(row, max(1, _BLOCK // chains), dim=1) for row in rows), strict=True):
        total += ((xs - as_) * gs).sum(1)
    return total


def _batch_means(draws: Tensor) -> Tensor:
    """Means of ⌊√n⌋ successive draws; the first few, which do not fill a batch, are left out."""
    n = len(draws)
    length = math.isqrt(n)
    return draws[n % length :].reshape(n // length, length, *draws.shape[1:]).mean(1)


def _covariance(chains: Tensor) -> Tensor:
    """The covariance within chains: (chains, n, p) to (p, p)."""
    centred = chains - chains.mean(1, keepdim=True)
    return torch.einsum("cni,cnj->ij", centred, centred) / (len(chains) * (chains.shape[1] - 1))

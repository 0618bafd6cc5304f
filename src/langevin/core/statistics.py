"""Statistics of correlated sequences: means with standard errors, and effective sample sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RECORD_LENGTH = 12  # autocorrelation times that a record needs to have, for a standard error to be known
MANY_CHAINS = 10  # from so many on, the spread of their means is the standard error, whatever the autocorrelation
_BLOCK = 1 << 18  # numbers


class Estimate(NamedTuple):
    """A mean and its standard error; the error is NaN if it is unknown."""

    mean: float
    error: float

    @property
    def known(self) -> bool:
        """Whether mean and standard error are both known."""
        return math.isfinite(self.mean) and math.isfinite(self.error)

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.error:.1g}" if math.isfinite(self.error) else f"{self.mean:.3g} ± unknown"


class LongRunVariance(NamedTuple):
    """n Var(mean of n values) for large n, its degrees of freedom, and its ratio to the variance of one value."""

    variance: float
    freedom: float
    autocorrelation_time: float


def mean_and_error(*chains: Sequence[float]) -> Estimate:
    """The mean over chains of correlated values, with a standard error from the spread within and between chains.

    ± 2 errors is a 95 % interval: errors from few degrees of freedom are widened as Student's t asks. With ten chains
    or more only the spread between them counts, which is right for any autocorrelation. With fewer, what the
    autocorrelations within chains predict and the spread between chains are pooled, unless the chains differ more than
    autocorrelation explains.

    The error is NaN, unknown, if the record is shorter than `RECORD_LENGTH` autocorrelation times: such a record says
    too little about its own autocorrelation. Values that are not finite are left out.
    """
    series = [values for values in map(_finite, chains) if len(values)]
    if not series:
        return Estimate(math.nan, math.nan)
    means = np.array([values.mean() for values in series])
    variance, freedom = _variance_of_a_mean(series, means)
    return Estimate(float(means.mean()), math.sqrt(variance / len(series)) * _widening(freedom))


def _variance_of_a_mean(series: Sequence[np.ndarray], means: np.ndarray) -> tuple[float, float]:
    """The variance of the mean of one chain, NaN if unknown, and its degrees of freedom."""
    from scipy.special import fdtri

    count = len(series)
    between, freedom = (float(means.var(ddof=1)), count - 1) if count > 1 else (math.inf, 1)
    if count >= MANY_CHAINS:
        return between, freedom
    long_run = long_run_variance(series)
    if long_run is not None:
        within = long_run.variance * float(np.mean([1 / len(values) for values in series]))
        if count == 1:
            return within, long_run.freedom
        if between <= within * fdtri(freedom, long_run.freedom, 0.99):  # the chains agree
            total = freedom + long_run.freedom
            return (freedom * between + long_run.freedom * within) / total, total
    spread = float(np.concatenate(series).var())
    return between if RECORD_LENGTH * between <= count * spread else math.nan, freedom


def long_run_variance(chains: Sequence[np.ndarray]) -> LongRunVariance | None:
    """The long-run variance that chains have in common; None if they are too short for their autocorrelation.

    Autocovariances about each chain's own mean, averaged over chains and summed up to the first pair that is not
    positive, pairs made monotone (Geyer 1992). Subtracting a chain's own mean makes each of them too small by the
    variance of that mean; the sum is corrected for it. Conservative for chains that oscillate.
    """
    total, longest = sum(map(len, chains)), max(map(len, chains))
    mean_length = total / len(chains)
    covariance = np.zeros(longest)
    for values in chains:
        spectrum = np.fft.rfft(values - values.mean(), 2 * longest)
        covariance += np.fft.irfft(spectrum.real**2 + spectrum.imag**2, 2 * longest)[:longest] / total
    if covariance[0] <= 0:
        return LongRunVariance(0.0, total, 1.0) if mean_length >= RECORD_LENGTH else None
    pairs = covariance[: longest // 2 * 2].reshape(-1, 2).sum(1)
    positive = np.minimum.accumulate(pairs)[: int(np.argmax(np.append(pairs, 0.0) <= 0))]
    window = (
        4 * max(len(positive), 1) - 1
    ) / mean_length  # the summed lags, of both signs, as a fraction of the record
    if window >= 0.6:
        return None
    variance = max((2 * positive.sum() - covariance[0]) / (1 - window), covariance[0] / mean_length)
    time = float(variance / (covariance[0] + variance / mean_length))
    if mean_length < RECORD_LENGTH * time:
        return None
    return LongRunVariance(float(variance), len(chains) / window, time)


def _widening(freedom: float) -> float:
    """How much a standard error grows, so that ± 2 of it is a 95 % interval with these degrees of freedom."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, 0.975) / ndtri(0.975))


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


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

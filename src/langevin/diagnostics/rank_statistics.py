"""Rank-normalized R̂, bulk and tail effective sample size (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021).

The numbers are ArviZ's, to rounding. ArviZ sums autocorrelations in a loop over lags, which takes minutes for chains of
tens of thousands of correlated draws; here a quantity takes a sort and a few Fourier transforms.

Chains are split in half. With the draws replaced by their normal scores z, the bulk ESS is that of z, the tail ESS the
smaller one of the indicators of the 5 % and 95 % quantiles, and R̂ the larger one of z and of the scores of the
distances from the median. An ESS is S/τ, S draws in all, τ = −1 + 2 Σ ρ over Geyer's initial monotone sequence.
"""

from __future__ import annotations

import math

import numpy as np


def rank_statistics(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bulk ESS, tail ESS, R̂) of draws (chains, n, quantities), n ≥ 4; R̂ is NaN for a single chain."""
    columns = [_one(np.ascontiguousarray(draws[:, :, index])) for index in range(draws.shape[2])]
    bulk, tail, rhat = np.array(columns, dtype=float).reshape(-1, 3).T
    return bulk, tail, rhat


def _one(draws: np.ndarray) -> tuple[float, float, float]:
    """Of a single quantity, (chains, n)."""
    if not np.isfinite(draws).all():
        return math.nan, math.nan, math.nan
    split = _split(draws)
    scores = _normal_scores(split)
    ordered = np.sort(draws, axis=None)
    tail = min(_ess(_split(draws <= _quantile(ordered, p))) for p in (0.05, 0.95))
    rhat = math.nan
    if len(draws) > 1:
        rhat = float(np.fmax(_rhat(scores), _rhat(_normal_scores(np.abs(split - np.median(split))))))
    return _ess(scores), tail, rhat


def _quantile(ordered: np.ndarray, p: float) -> float:
    """Linear between draws; where it is a draw, exactly that one, which `np.quantile` may miss by a rounding."""
    place = len(ordered) * p + (1 - p)
    below = min(math.floor(place), len(ordered) - 1)
    share = place - below
    return float((1 - share) * ordered[below - 1] + share * ordered[below])


def _split(draws: np.ndarray) -> np.ndarray:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    """The normal deviates of the same ranks, over all chains."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    scores: np.ndarray = ndtri((rankdata(draws).reshape(draws.shape) - 3 / 8) / (draws.size + 1 / 4))
    return scores


def _rhat(draws: np.ndarray) -> float:
    n = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(), n * draws.mean(1).var(ddof=1)
    if within == 0:
        return math.inf if between > 0 else math.nan
    return math.sqrt((between / within + n - 1) / n)


def _ess(draws: np.ndarray) -> float:
    """S/τ of (chains, n) draws."""
    draws = draws.astype(float)
    chains, n = draws.shape
    if draws.max() - draws.min() < np.finfo(float).resolution:
        return float(draws.size)
    covariance = autocovariance(draws)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (draws.mean(1).var(ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    even, odd = rho[: n - n % 2 : 2], rho[1::2]
    pairs = even + odd
    last = max(math.ceil((n - 4) / 2), 0)  # so many pairs are looked at, at most
    ended = np.flatnonzero(pairs[: last + 1] <= 0)
    k = int(ended[0]) if len(ended) else last
    beyond = even[k] if even[k] > 0 or pairs[k] >= 0 else 0.0
    tau = -1 + 2 * np.minimum.accumulate(pairs[:k]).sum() + beyond
    return float(draws.size / max(tau, 1 / math.log10(draws.size)))


def autocovariance(draws: np.ndarray) -> np.ndarray:
    """Of every lag, the mean over chains, of (chains, n) draws."""
    from scipy.fft import irfft, next_fast_len, rfft

    n = draws.shape[1]
    size = next_fast_len(2 * n, real=True)
    spectrum = rfft(draws - draws.mean(1, keepdims=True), size)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    covariance: np.ndarray = irfft(power.mean(0), size)[:n] / n
    return covariance

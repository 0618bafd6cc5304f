"""Effective sample size: how many independent draws a correlated chain is worth."""

from __future__ import annotations

import torch
from torch import Tensor


def effective_sample_size(draws: Tensor) -> Tensor:
    """essᵢ = n/(1 + 2Σ_k ρ_k) of each column, summed to the last lag before the autocorrelation turns negative.

    `draws` is (n,) or (n, …). Conservative for momentum samplers, whose autocorrelation turns negative and would win
    back what is counted as lost. A constant column has no effective sample: 0.
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
    """s²/λ² of each column (n,) or (n, …), λ² the variance of its mean by batch means, ⌊√n⌋ draws to a batch.

    It sees negative autocorrelation, so it is beside `effective_sample_size` for samplers with momentum.
    """
    raise NotImplementedError


def mess_diagonal(draws: Tensor) -> float:
    """mESS of (n, p) draws, diagonal: the geometric mean of essᵢ."""
    raise NotImplementedError


def mess_full(draws: Tensor) -> float:
    """mESS of (n, p) draws, full: n(|Λ|/|Σ|)^{1/p}, Λ the covariance of draws, Σ that of the mean by batch means.

    nan where there are fewer batches than p + 1 and Σ is singular (Vats, Flegal & Jones 2019).
    """
    raise NotImplementedError

"""Chains with a known autocorrelation."""

import math

import numpy as np
import torch
from scipy.signal import lfilter


def autoregressive(rho, n=20_000, columns=20, seed=3):
    """x_t = ρ x_{t−1} + √(1 − ρ²) η_t from its stationary law, (n, columns)."""
    eta = np.random.default_rng(seed).normal(size=(n, columns))
    eta[1:] *= math.sqrt(1 - rho**2)
    return torch.from_numpy(lfilter([1.0], [1.0, -rho], eta, axis=0))

"""The continuous ranked probability score of any mixture, from its cdf."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.ensembles.mixture import Mixture

_POINTS = 128  # on each side of y
_MANY = 4096  # counts that are summed one by one


def integrated_crps(mixture: Mixture, y: Tensor) -> Tensor:
    """∫(F(z) − [z ≥ y])² dz for every value of y, in its shape.

    From 12 standard deviations below the mean to 12 above; a y outside of that adds its distance. The trapezoidal rule
    on each side of y is within some 1e-3 of a standard deviation; for whole numbers the sum is exact.
    """
    means, variances = mixture.moments()
    mean, spread = means.mean(0), (variances.mean(0) + means.var(0, correction=0)).sqrt()
    low, high = mean - 12 * spread, mean + 12 * spread
    beyond = (low - y).clamp_min(0) + (y - high).clamp_min(0)
    if mixture.discrete and float((high - low).max()) < _MANY:
        first, last = int(torch.minimum(low, y).min().floor()), int(torch.maximum(high, y).max().ceil())
        if last - first < 2 * _MANY:
            total = torch.zeros_like(y)
            for z in range(max(first, 0), last + 1):
                total += (mixture.cdf(torch.full_like(y, z)) - (y <= z).double()).square()
            return total
    inside = y.clamp(low, high)
    below = _trapezoid(mixture, low, inside, lambda f: f.square())
    above = _trapezoid(mixture, inside, high, lambda f: (1 - f).square())
    return below + above + beyond


def _trapezoid(mixture: Mixture, start: Tensor, stop: Tensor, integrand: object) -> Tensor:
    """The integral of a function of the cdf between two values."""
    width, total = (stop - start) / _POINTS, torch.zeros_like(start)
    for point in range(_POINTS + 1):
        weight = 0.5 if point in (0, _POINTS) else 1.0
        total += weight * integrand(mixture.cdf(start + point * width))  # type: ignore[operator]
    return total * width

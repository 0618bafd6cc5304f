"""Approximations of the posterior, fitted instead of sampled by `lv.fit`. Importing one registers it."""

from langevin.approximations.averaging import HWA, SWA, SWAG
from langevin.approximations.base import APPROXIMATIONS, Approximation
from langevin.approximations.deep_ensemble import DeepEnsemble
from langevin.approximations.laplace import Laplace
from langevin.approximations.variational import Family, LowRank, MeanField, elbo

__all__ = [
    "APPROXIMATIONS",
    "HWA",
    "SWA",
    "SWAG",
    "Approximation",
    "DeepEnsemble",
    "Family",
    "Laplace",
    "LowRank",
    "MeanField",
    "elbo",
]

"""Approximations of the posterior, fitted instead of sampled by `lv.fit`. Importing one registers it."""

from langevin.approximations.averaging import HWA, SWA, SWAG
from langevin.approximations.base import APPROXIMATIONS, Approximation
from langevin.approximations.deep_ensemble import DeepEnsemble
from langevin.approximations.dropout import MCDropout
from langevin.approximations.laplace import Laplace
from langevin.approximations.variational import IVON, Family, LowRank, MeanField, Reparameterized, elbo

__all__ = [
    "APPROXIMATIONS",
    "HWA",
    "IVON",
    "SWA",
    "SWAG",
    "Approximation",
    "DeepEnsemble",
    "Family",
    "Laplace",
    "LowRank",
    "MCDropout",
    "MeanField",
    "Reparameterized",
    "elbo",
]

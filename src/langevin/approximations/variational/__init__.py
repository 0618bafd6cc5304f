"""Variational inference: the member of a family with the smallest KL divergence to the posterior."""

from langevin.approximations.variational.elbo import elbo
from langevin.approximations.variational.families import LowRank, MeanField
from langevin.approximations.variational.ivon import IVON
from langevin.approximations.variational.objective import Family, Reparameterized, Variational

__all__ = ["IVON", "Family", "LowRank", "MeanField", "Reparameterized", "Variational", "elbo"]

"""Variational inference: the member of a family of distributions that is nearest to the posterior."""

from langevin.variational.elbo import elbo
from langevin.variational.families import LowRank, MeanField
from langevin.variational.objective import Family, Variational

__all__ = ["Family", "LowRank", "MeanField", "Variational", "elbo"]

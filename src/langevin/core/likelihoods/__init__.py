"""Likelihoods: log p(y | output), one value per example. Importing one here registers it."""

from langevin.core.likelihoods.base import LIKELIHOODS, Likelihood, sampled_labels
from langevin.core.likelihoods.bernoulli import Bernoulli
from langevin.core.likelihoods.categorical import Categorical
from langevin.core.likelihoods.gaussian import Gaussian
from langevin.core.likelihoods.heteroscedastic import HeteroscedasticGaussian

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "sampled_labels",
]

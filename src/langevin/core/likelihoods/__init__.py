"""Likelihoods: log p(y | output), one value per example. Importing one here registers it."""

from langevin.core.likelihoods.base import LIKELIHOODS, Likelihood, ValueLikelihood, sampled_labels
from langevin.core.likelihoods.bernoulli import Bernoulli
from langevin.core.likelihoods.categorical import Categorical
from langevin.core.likelihoods.counts import NegativeBinomial, Poisson
from langevin.core.likelihoods.distribution import Distribution
from langevin.core.likelihoods.gaussian import Gaussian
from langevin.core.likelihoods.heteroscedastic import HeteroscedasticGaussian, HeteroscedasticStudentT
from langevin.core.likelihoods.mean_loss import MeanLoss
from langevin.core.likelihoods.multi_label import MultiLabel
from langevin.core.likelihoods.ordinal import Ordinal
from langevin.core.likelihoods.student_t import StudentT
from langevin.core.likelihoods.tokens import Tokens
from langevin.core.likelihoods.weighted import Weighted

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticStudentT",
    "Likelihood",
    "MeanLoss",
    "MultiLabel",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "Tokens",
    "ValueLikelihood",
    "Weighted",
    "sampled_labels",
]

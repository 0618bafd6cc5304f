"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions."""

from langevin._version import __version__
from langevin.likelihoods import Bernoulli, Categorical, GaussianNoise
from langevin.posterior import Posterior
from langevin.priors import Gaussian, GroupLaplace, Laplace, PerParameter, StudentT, UnitDirection
from langevin.samplers import ATMC, FSGD, SGD, SGHMC, SGLD, SGNHT
from langevin.schedules import cyclical

__all__ = [
    "ATMC",
    "FSGD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "GaussianNoise",
    "GroupLaplace",
    "Laplace",
    "PerParameter",
    "Posterior",
    "StudentT",
    "UnitDirection",
    "__version__",
    "cyclical",
]

"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions."""

from langevin import data, models
from langevin._version import __version__
from langevin.likelihoods import Bernoulli, Categorical, GaussianNoise
from langevin.loop import resume, sample
from langevin.optimum import find_map
from langevin.plan import Moment
from langevin.posterior import Posterior
from langevin.preconditioners import BNP, KFAC, Fisher, Preconditioner, RMSprop
from langevin.preflight import Diverged
from langevin.priors import Gaussian, GroupLaplace, Laplace, PerParameter, StudentT, UnitDirection
from langevin.run import Run, load
from langevin.samplers import (
    ATMC,
    BNPSGLD,
    FSGD,
    KSGLD,
    NLD,
    SGD,
    SGHMC,
    SGLD,
    SGNHT,
    SNGD,
    batch_size_for,
    pSGLD,
    temperature_of,
)
from langevin.schedules import cyclical
from langevin.store import RunError

__all__ = [
    "ATMC",
    "BNP",
    "BNPSGLD",
    "FSGD",
    "KFAC",
    "KSGLD",
    "NLD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNGD",
    "Bernoulli",
    "Categorical",
    "Diverged",
    "Fisher",
    "Gaussian",
    "GaussianNoise",
    "GroupLaplace",
    "Laplace",
    "Moment",
    "PerParameter",
    "Posterior",
    "Preconditioner",
    "RMSprop",
    "Run",
    "RunError",
    "StudentT",
    "UnitDirection",
    "__version__",
    "batch_size_for",
    "cyclical",
    "data",
    "find_map",
    "load",
    "models",
    "pSGLD",
    "resume",
    "sample",
    "temperature_of",
]

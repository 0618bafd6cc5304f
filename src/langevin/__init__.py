"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions."""

import importlib
from typing import Any

from langevin import data, models, priors
from langevin._version import __version__
from langevin.citation import cite
from langevin.evaluation.attacks import FGSM, PGD
from langevin.evaluation.compare import Comparison, compare
from langevin.likelihoods import Bernoulli, Categorical, GaussianNoise
from langevin.loop import resume, sample
from langevin.named import load
from langevin.optimum import find_map
from langevin.plan import Moment
from langevin.posterior import Posterior
from langevin.preconditioners import BNP, KFAC, Fisher, Preconditioner, RMSprop
from langevin.preflight import Diverged
from langevin.priors import Flat, Gaussian, GroupLaplace, Laplace, PerParameter, StudentT, UnitDirection
from langevin.run import Run
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
from langevin.tuning import RateSearch, find_lr

__all__ = [
    "ATMC",
    "BNP",
    "BNPSGLD",
    "FGSM",
    "FSGD",
    "KFAC",
    "KSGLD",
    "NLD",
    "PGD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNGD",
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Diverged",
    "Fisher",
    "Flat",
    "Gaussian",
    "GaussianNoise",
    "GroupLaplace",
    "Laplace",
    "Moment",
    "PerParameter",
    "Posterior",
    "Preconditioner",
    "RMSprop",
    "RateSearch",
    "Run",
    "RunError",
    "StudentT",
    "UnitDirection",
    "__version__",
    "batch_size_for",
    "cite",
    "compare",
    "cyclical",
    "data",
    "find_lr",
    "find_map",
    "load",
    "models",
    "pSGLD",
    "priors",
    "resume",
    "sample",
    "temperature_of",
]


def __getattr__(name: str) -> Any:
    """`lv.sklearn` is imported when it is first asked for: scikit-learn takes its time."""
    if name == "sklearn":
        return importlib.import_module("langevin.sklearn")
    raise AttributeError(f"module 'langevin' has no attribute {name!r}")

"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions."""

import importlib
from typing import Any

from langevin import bandits, data, models, plots
from langevin._version import __version__
from langevin.approximations.averaging import HWA, SWA, SWAG
from langevin.approximations.laplace import LaplaceApproximation
from langevin.approximations.variational import LowRank, MeanField, elbo
from langevin.core import priors
from langevin.core.likelihoods import Bernoulli, Categorical, GaussianNoise
from langevin.core.posterior import Posterior
from langevin.core.priors import Flat, Gaussian, GroupLaplace, Laplace, PerParameter, StudentT, UnitDirection
from langevin.core.schedules import cyclical
from langevin.ensembles.cite import cite
from langevin.ensembles.distill import Distilled, distill
from langevin.ensembles.fit import Fit
from langevin.ensembles.run import Run
from langevin.errors import DivergenceError, RunError
from langevin.evaluation.attacks import FGSM, PGD
from langevin.evaluation.compare import Comparison, compare
from langevin.inference.distributed import Mesh
from langevin.inference.find_lr import RateSearch, find_lr
from langevin.inference.find_map import find_map
from langevin.inference.fit import fit, resume
from langevin.inference.sample import sample
from langevin.inference.settings import StepInfo
from langevin.preconditioners import BNP, KFAC, Fisher, Preconditioner, RMSprop
from langevin.recipes import load
from langevin.report import Report, evaluate
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

__all__ = [
    "ATMC",
    "BNP",
    "BNPSGLD",
    "FGSM",
    "FSGD",
    "HWA",
    "KFAC",
    "KSGLD",
    "NLD",
    "PGD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNGD",
    "SWA",
    "SWAG",
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Distilled",
    "DivergenceError",
    "Fisher",
    "Fit",
    "Flat",
    "Gaussian",
    "GaussianNoise",
    "GroupLaplace",
    "Laplace",
    "LaplaceApproximation",
    "LowRank",
    "MeanField",
    "Mesh",
    "PerParameter",
    "Posterior",
    "Preconditioner",
    "RMSprop",
    "RateSearch",
    "Report",
    "Run",
    "RunError",
    "StepInfo",
    "StudentT",
    "UnitDirection",
    "__version__",
    "bandits",
    "batch_size_for",
    "cite",
    "compare",
    "cyclical",
    "data",
    "distill",
    "elbo",
    "evaluate",
    "find_lr",
    "find_map",
    "fit",
    "load",
    "models",
    "pSGLD",
    "plots",
    "priors",
    "resume",
    "sample",
    "temperature_of",
]


def __getattr__(name: str) -> Any:
    """`lv.sklearn` and `lv.plots` are imported when they are first asked for: what they need takes its time."""
    if name in ("sklearn", "plots"):
        return importlib.import_module(f"langevin.{name}")
    raise AttributeError(f"module 'langevin' has no attribute {name!r}")

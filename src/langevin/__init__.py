"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions."""

import importlib
from typing import Any

from langevin import bandits, data, models, plots, priors
from langevin._version import __version__
from langevin.averaging import HWA, SWA, SWAG
from langevin.citation import cite
from langevin.distil import Distilled, distil
from langevin.distributed import Mesh
from langevin.evaluation.attacks import FGSM, PGD
from langevin.evaluation.compare import Comparison, compare
from langevin.fitted import Fit
from langevin.fitting import fit, resume
from langevin.laplace import LaplaceApproximation
from langevin.likelihoods import Bernoulli, Categorical, GaussianNoise
from langevin.loop import sample
from langevin.named import load
from langevin.optimum import find_map
from langevin.plan import Moment
from langevin.posterior import Posterior
from langevin.preconditioners import BNP, KFAC, Fisher, Preconditioner, RMSprop
from langevin.preflight import Diverged
from langevin.priors import Flat, Gaussian, GroupLaplace, Laplace, PerParameter, StudentT, UnitDirection
from langevin.report import Report, evaluate
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
from langevin.variational import LowRank, MeanField, elbo

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
    "Diverged",
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
    "Moment",
    "PerParameter",
    "Posterior",
    "Preconditioner",
    "RMSprop",
    "RateSearch",
    "Report",
    "Run",
    "RunError",
    "StudentT",
    "UnitDirection",
    "__version__",
    "bandits",
    "batch_size_for",
    "cite",
    "compare",
    "cyclical",
    "data",
    "distil",
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

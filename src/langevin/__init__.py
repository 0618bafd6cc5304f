"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions.

What a user needs is `lv.NAME`; likelihoods, priors, preconditioners and the rest are in the modules of that name. Every
registered sampler and approximation is `lv.NAME` too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from langevin import approximations, preconditioners, samplers
from langevin._version import __version__
from langevin.core import likelihoods, priors
from langevin.core.posterior import Posterior
from langevin.core.schedules import cyclical
from langevin.errors import DivergenceError, RunError
from langevin.samplers import Sampler

if TYPE_CHECKING:
    from langevin import bandits, data, diagnostics, evaluation, integrations, models, plots
    from langevin.approximations import *  # noqa: F403
    from langevin.ensembles.cite import cite
    from langevin.ensembles.distill import distill
    from langevin.ensembles.ensemble import Ensemble
    from langevin.ensembles.fit import Fit
    from langevin.ensembles.run import Run
    from langevin.evaluation.compare import compare
    from langevin.inference.find_lr import find_lr
    from langevin.inference.find_map import find_map
    from langevin.inference.fit import fit
    from langevin.inference.prior_predictive import prior_predictive
    from langevin.inference.recorder import Recorder
    from langevin.inference.resume import resume
    from langevin.inference.sample import sample
    from langevin.loading import load
    from langevin.report.evaluate import evaluate
    from langevin.samplers import *  # noqa: F403

_LATER = {  # imported at first use, so that `import langevin` takes little more time than `import torch`
    "Ensemble": "langevin.ensembles.ensemble",
    "Fit": "langevin.ensembles.fit",
    "Recorder": "langevin.inference.recorder",
    "Run": "langevin.ensembles.run",
    "cite": "langevin.ensembles.cite",
    "compare": "langevin.evaluation.compare",
    "distill": "langevin.ensembles.distill",
    "evaluate": "langevin.report",
    "find_lr": "langevin.inference.find_lr",
    "find_map": "langevin.inference.find_map",
    "fit": "langevin.inference.fit",
    "load": "langevin.loading",
    "prior_predictive": "langevin.inference.prior_predictive",
    "resume": "langevin.inference.resume",
    "sample": "langevin.inference.sample",
}
_MODULES = ("bandits", "data", "diagnostics", "evaluation", "integrations", "models", "plots")

__all__ = [  # and every registered sampler and approximation
    "DivergenceError",
    "Ensemble",
    "Fit",
    "Posterior",
    "Recorder",
    "Run",
    "RunError",
    "Sampler",
    "__version__",
    "approximations",
    "bandits",
    "cite",
    "compare",
    "cyclical",
    "data",
    "diagnostics",
    "distill",
    "evaluate",
    "evaluation",
    "find_lr",
    "find_map",
    "fit",
    "integrations",
    "likelihoods",
    "load",
    "models",
    "plots",
    "preconditioners",
    "prior_predictive",
    "priors",
    "resume",
    "sample",
    "samplers",
]


def __getattr__(name: str) -> Any:
    """Registered samplers and approximations, and what is imported at first use."""
    for registry in (samplers.SAMPLERS, approximations.APPROXIMATIONS):
        if name in (exported := registry.exports()):
            return exported[name]
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"langevin.{name}")
    raise AttributeError(f"module 'langevin' has no attribute {name!r}")


def __dir__() -> list[str]:
    registered = [*samplers.SAMPLERS.exports(), *approximations.APPROXIMATIONS.exports()]
    return sorted([*__all__, *registered])

"""langevin: samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions.

What a user needs is `lv.NAME`; likelihoods, priors, preconditioners and the rest are in the modules of that name. Every
registered sampler and approximation is `lv.NAME` too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from langevin._version import __version__
from langevin.errors import DivergenceError, RunError

if TYPE_CHECKING:
    from langevin import (
        approximations,
        bandits,
        data,
        diagnostics,
        evaluation,
        integrations,
        models,
        plots,
        preconditioners,
        samplers,
    )
    from langevin.approximations import *  # noqa: F403
    from langevin.core import likelihoods, priors
    from langevin.core.posterior import Posterior
    from langevin.core.schedules import cyclical
    from langevin.ensembles.cite import cite
    from langevin.ensembles.distill import distill
    from langevin.ensembles.ensemble import Ensemble
    from langevin.ensembles.fit import Fit
    from langevin.ensembles.last_layer import last_layer
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
    from langevin.samplers import Sampler

_LATER = {  # imported at first use, so that `import langevin` takes little more time than `import torch`
    "Ensemble": "langevin.ensembles.ensemble",
    "Fit": "langevin.ensembles.fit",
    "Posterior": "langevin.core.posterior",
    "Recorder": "langevin.inference.recorder",
    "Run": "langevin.ensembles.run",
    "Sampler": "langevin.samplers",
    "cite": "langevin.ensembles.cite",
    "compare": "langevin.evaluation.compare",
    "cyclical": "langevin.core.schedules",
    "distill": "langevin.ensembles.distill",
    "evaluate": "langevin.report",
    "find_lr": "langevin.inference.find_lr",
    "find_map": "langevin.inference.find_map",
    "fit": "langevin.inference.fit",
    "last_layer": "langevin.ensembles.last_layer",
    "load": "langevin.loading",
    "prior_predictive": "langevin.inference.prior_predictive",
    "resume": "langevin.inference.resume",
    "sample": "langevin.inference.sample",
}
_MODULES = {
    **{name: f"langevin.core.{name}" for name in ("likelihoods", "priors")},
    **{
        name: f"langevin.{name}"
        for name in (
            "approximations",
            "bandits",
            "data",
            "diagnostics",
            "evaluation",
            "integrations",
            "models",
            "plots",
            "preconditioners",
            "samplers",
        )
    },
}

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
    "last_layer",
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
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if not name.startswith("_") and name in (registered := _registered()):
        return registered[name]
    raise AttributeError(f"module 'langevin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_registered()])


def _registered() -> dict[str, Any]:
    from langevin.approximations import APPROXIMATIONS
    from langevin.samplers import SAMPLERS

    return {**SAMPLERS.exports(), **APPROXIMATIONS.exports()}

"""`load`: open a stored run or fit; one that the command line made knows its model by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from langevin import models
from langevin.core.likelihoods import Likelihood
from langevin.ensembles.fit import Fit
from langevin.ensembles.load import open_run
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.storage.directory import DirectoryStore


def load(path: str | Path, model: nn.Module | None = None, likelihood: Likelihood | None = None) -> Run | Fit:
    """Open a run or a fit for prediction.

    The model gives the architecture; its weights do not matter and are not changed. A run made by the command line with
    a network of the library knows it by name. The likelihood is needed only if it is not one of the library's.
    """
    if model is None:
        recipe = command_of(path)
        if recipe is None or ":" in recipe["model"]:
            raise RunError(f"{path} does not know its model by name; give it: lv.load({str(path)!r}, model).")
        model = models.make(recipe["model"], **recipe.get("made_with", {}))
    return open_run(path, model, likelihood)


def command_of(path: str | Path) -> dict[str, Any] | None:
    """What the command said that made a run; None if no command did."""
    recipe = DirectoryStore.open(path).manifest.get("tags", {}).get("command")
    if recipe is None:
        return None
    kinds = {
        "model": str,
        "model_options": dict,
        "data": str,
        "data_options": dict,
        "likelihood": str | None,
        "likelihood_options": dict,
        "prior": str | None,
        "prior_options": dict,
        "num_data": int | None,
        "seed": int,
    }
    made_with = recipe.get("made_with", {}) if isinstance(recipe, dict) else None
    if not (isinstance(made_with, dict) and all(isinstance(recipe.get(name), kind) for name, kind in kinds.items())):
        raise RunError(f"The command in the manifest of {path} is not one of langevin's.")
    found: dict[str, Any] = recipe
    return found

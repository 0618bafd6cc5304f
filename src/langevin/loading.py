"""`load`: open a stored run or fit; one that the command line made knows its model by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from langevin import models
from langevin.core.arguments import validated
from langevin.core.likelihoods import Likelihood
from langevin.ensembles.fit import Fit
from langevin.ensembles.load import open_run
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.storage.directory import DirectoryStore


@validated()
def load(path: str | Path, model: nn.Module | None = None, likelihood: Likelihood | None = None) -> Run | Fit:
    """Open a run or a fit for prediction.

    The model gives the architecture; its weights do not matter and are not changed. A run made by the command line with
    a network of the library knows it by name. The likelihood is needed only if it is not one of the library's.
    """
    if model is None:
        recipe = command_of(path)
        if recipe is None or ":" in recipe["model"]:
            raise RunError(f"{path} does not know its model by name; give it: lv.load({str(path)!r}, model).")
        model = made_model(path, recipe)
    return open_run(path, model, likelihood)


def made_model(path: str | Path, recipe: dict[str, Any]) -> nn.Module:
    """The network that a recipe names. Its sizes are compared with the stored ones before any memory is allocated."""
    options = recipe.get("made_with", {})
    store = DirectoryStore.open(path)
    stored = {name.removeprefix("mean/"): spec["shape"] for name, spec in store.manifest["tensors"].items()}
    stored |= store.fixed_shapes()
    with torch.device("meta"):
        sizes = {name: list(p.shape) for name, p in models.make(recipe["model"], **options).named_parameters()}
    if "method" in store.manifest:  # of a fit, tied means and factors have other names
        sizes = {name: shape for name, shape in sizes.items() if name in stored}
    if different := [name for name, shape in sizes.items() if stored.get(name) != shape]:
        raise RunError(
            f"The manifest of {path} names a network whose {different[0]!r} has the shape {sizes[different[0]]}; the "
            f"stored weights have {stored.get(different[0], 'no such tensor')}."
        )
    return models.make(recipe["model"], **options)


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

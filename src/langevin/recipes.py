"""Posteriors by name: what a command says, what its run records, and the same made again from there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from langevin import data as data_sets
from langevin import models
from langevin.core.batches import as_batches
from langevin.core.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian, default
from langevin.ensembles import fit as fitted
from langevin.ensembles import run
from langevin.errors import RunError
from langevin.evaluation.inputs import examples
from langevin.storage.directory import DirectoryStore


def load(path: str | Path, model: nn.Module | None = None, likelihood: Likelihood | None = None) -> run.Run:
    """Open a run for prediction.

    The model gives the architecture; its weights do not matter and are not changed. A run made by the command line with
    a network of the library's knows it by name. The likelihood is needed only if it was not one of the library's.
    """
    if model is None:
        recipe = DirectoryStore.open(path).manifest.get("tags", {}).get("command")
        if recipe is None or not _is_recipe(recipe) or ":" in recipe["model"]:
            raise RunError(f"{path} does not know its model by name; give it: lv.load({str(path)!r}, model).")
        model = models.make(recipe["model"], **recipe.get("made_with", {}))
    if "method" in DirectoryStore.open(path).manifest:
        return fitted.load(path, model, likelihood)
    return run.load(path, model, likelihood)


def recipe_of(path: str | Path, trust: bool) -> dict[str, Any]:
    """What the command that began a run said. Functions that it names are called only if the user trusts the run:
    whoever wrote the manifest chose them.
    """
    recipe: dict[str, Any] | None = DirectoryStore.open(path).manifest.get("tags", {}).get("command")
    if recipe is None:
        raise ValueError(f"{path} was not begun on the command line; continue it with lv.resume({str(path)!r}, …).")
    if not _is_recipe(recipe):
        raise RunError(f"The command in the manifest of {path} is none of langevin's.")
    own = [recipe[part] for part in ("model", "data") if ":" in recipe[part]]
    if own and not trust:
        raise RunError(
            f"{path} names functions to be called, {' and '.join(own)}. If they are yours, say so: langevin resume "
            f"{path} --trust."
        )
    return recipe


def _is_recipe(recipe: Any) -> bool:
    kinds = {
        "model": str,
        "model_options": dict,
        "data": str,
        "data_options": dict,
        "likelihood": str | None,
        "prior_std": float | int | None,
        "num_data": int | None,
        "seed": int,
    }
    made_with = recipe.get("made_with", {}) if isinstance(recipe, dict) else None
    return isinstance(made_with, dict) and all(isinstance(recipe.get(name), kind) for name, kind in kinds.items())


def build(recipe: dict[str, Any]) -> tuple[Posterior, Any]:
    """The posterior and the data that a command names; options of the model that it guesses go into the recipe."""
    make_data = imported(recipe["data"]) if ":" in recipe["data"] else partial(data_sets.load, recipe["data"])
    train = _called(recipe["data"], make_data, recipe["data_options"])
    batches = as_batches(train, None, 0, torch.device("cpu"))
    x, y = batches.fetch(0, 0)
    targets = batches.targets()
    likelihood = _likelihood(recipe["likelihood"], y)
    num_data = recipe["num_data"] or batches.num_data
    if num_data is None:
        raise ValueError("These data do not know their length; say how many examples they are: --num-data 60000.")
    torch.manual_seed(recipe["seed"])
    if ":" in recipe["model"]:
        model = _called(recipe["model"], imported(recipe["model"]), recipe["model_options"])
    else:
        classes = int((y if targets is None else targets).max()) + 1 if isinstance(likelihood, Categorical) else 1
        recipe["made_with"] = _guessed(recipe["model"], x, classes) | recipe["model_options"]
        model = models.make(recipe["model"], **recipe["made_with"])
    prior = default(model) if recipe["prior_std"] is None else Gaussian(recipe["prior_std"])
    return Posterior(model, likelihood, prior, num_data=num_data), train


def reopen(path: str | Path) -> run.Run:
    """Open a run that the command line made; a function of the user's that makes its model is called again."""
    recipe = command_of(path)
    if ":" not in recipe["model"]:
        return load(path)
    return load(path, _called(recipe["model"], imported(recipe["model"]), recipe["model_options"]))


def command_of(path: str | Path) -> dict[str, Any]:
    """What the command said that made a run."""
    recipe: dict[str, Any] | None = DirectoryStore.open(path).manifest.get("tags", {}).get("command")
    if recipe is None:
        raise RunError(
            f"{path} was not made on the command line, which so knows neither its model nor its data. In Python: "
            f"lv.evaluate(lv.load({str(path)!r}, model), test)."
        )
    return recipe


def held_out(recipe: dict[str, Any], given: str | None = None) -> tuple[Any, torch.Tensor] | None:
    """Test data (x, y): those that are given by name or module:function, else the test part of the recipe's.

    None if the recipe's data are a function of the user's, which may have no test part.
    """
    data = _test_set(recipe, given)
    return None if data is None else examples(data)


def foreign(recipe: dict[str, Any], name: str) -> Any:
    """Inputs of another kind, by name or module:function; images are normalized as those that the run knows."""
    if ":" in name:
        return imported(name)()
    own = None if ":" in recipe["data"] else _test_set(recipe, None)
    scale = getattr(own, "normalization", None)
    return data_sets.load(name, split="test", **({} if scale is None else {"normalize": scale}))


def _test_set(recipe: dict[str, Any], given: str | None) -> Any:
    name = given or recipe["data"]
    if ":" in name:
        return None if given is None else imported(name)()
    options = recipe["data_options"] if name == recipe["data"] else {}
    return data_sets.load(name, **{**options, "split": "test"})


def imported(name: str) -> Callable[..., Any]:
    """The function that module:function names; modules in the working directory count."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name!r} is not of the form module:function.")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name!r} can't be imported: {error}.") from None
    finally:
        sys.path.remove("")
    if not callable(found):
        raise ValueError(f"{module} has no function {attribute!r}.")
    return found  # type: ignore[no-any-return]


def _called(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> Any:
    import inspect

    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise ValueError(f"{name} can't be called with the options {options}: {error}.") from None
    return factory(**options)


def _guessed(name: str, x: Any, classes: int) -> dict[str, Any]:
    """What the data say about the sizes of a network."""
    if name in ("mlp", "logistic"):
        return {"in_features": x[0].numel(), "out_features": classes}
    image = {"in_channels": x.shape[1]} if isinstance(x, torch.Tensor) and x.dim() == 4 else {}
    return {"num_classes": classes, **image}


def _likelihood(name: str | None, y: Any) -> Any:
    known: dict[str, Callable[[], Any]] = {
        "categorical": Categorical,
        "bernoulli": Bernoulli,
        "gaussian": partial(GaussianNoise, 0.5, sampled=True),
    }
    if name is None:
        name = "gaussian" if y.is_floating_point() else "categorical"
    if name not in known:
        raise ValueError(f"--likelihood {name}: choose one of {', '.join(known)}.")
    return known[name]()

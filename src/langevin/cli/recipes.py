"""Posteriors by name: what a command says, what its run records, and the same made again from there.

A recipe names models and data. Names of the library are looked up; `module:function` is imported and called, which is
done for a stored run only if the user trusts it: whoever wrote the manifest chose the function.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from langevin import data as data_sets
from langevin import models
from langevin.core.batches import as_batches
from langevin.core.likelihoods import LIKELIHOODS
from langevin.core.posterior import Posterior
from langevin.core.priors import PRIORS, default
from langevin.ensembles.fit import Fit
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.evaluation.inputs import examples
from langevin.loading import command_of, load

_WRONG_TYPE = (TypeError, AttributeError, LookupError, RuntimeError, ArithmeticError)  # what unsuitable values raise


def new_recipe(
    *,
    model: str,
    model_options: dict[str, Any],
    data: str,
    data_options: dict[str, Any],
    likelihood: str | None,
    likelihood_options: dict[str, Any],
    prior: str | None,
    prior_options: dict[str, Any],
    num_data: int | None,
    seed: int,
) -> dict[str, Any]:
    """What a command says about the posterior and the data; it stands in the manifest, for `resume`."""
    for option, name, known in (("--model", model, models.names()), ("--data", data, data_sets.names())):
        if ":" not in name and name not in known:
            raise ValueError(
                f"{option} {name} is not known; choose one of {', '.join(known)}, or name a function of yours: "
                f"{option} module:function."
            )
    if prior is None and prior_options:
        raise ValueError("--prior-option belongs to a prior; name it: --prior gaussian --prior-option std=1.0.")
    return {
        "model": model,
        "model_options": model_options,
        "data": data,
        "data_options": data_options,
        "likelihood": likelihood,
        "likelihood_options": likelihood_options,
        "prior": prior,
        "prior_options": prior_options,
        "num_data": num_data,
        "seed": seed,
    }


def recipe_of(
    path: str | Path, trust: bool, command: str, calls: Collection[str] = ("model", "data")
) -> dict[str, Any]:
    """The recipe of a run that the command line made; refused if the user does not trust functions that it names.

    `calls` are the parts of the recipe that the command will make again.
    """
    recipe = command_of(path)
    if recipe is None:
        raise RunError(
            f"{path} was not made on the command line, which so knows neither its model nor its data. In Python: "
            f"lv.resume({str(path)!r}, posterior, data), or lv.evaluate(lv.load({str(path)!r}, model), test)."
        )
    own = [recipe[part] for part in ("model", "data") if part in calls and ":" in recipe[part]]
    if own and not trust:
        raise RunError(
            f"{path} names functions to be called, {' and '.join(own)}. If they are yours, allow it: langevin "
            f"{command} {path} --trust."
        )
    return recipe


def build(recipe: dict[str, Any]) -> tuple[Posterior, Any]:
    """The posterior and the data that a command names; options of the model that it guesses go into the recipe."""
    make_data = imported(recipe["data"]) if ":" in recipe["data"] else partial(data_sets.load, recipe["data"])
    train = called(recipe["data"], make_data, recipe["data_options"])
    batches = as_batches(train, None, 0, torch.device("cpu"))
    x, y = batches.fetch(0, 0)
    targets = batches.targets()
    likelihood = _likelihood(recipe, y)
    num_data = batches.num_data if recipe["num_data"] is None else recipe["num_data"]
    if num_data is None:
        raise ValueError("These data do not know their length; say how many examples they are: --num-data 60000.")
    torch.manual_seed(recipe["seed"])
    if ":" not in recipe["model"]:
        wanted = getattr(likelihood, "num_outputs", lambda target: target[0].numel())
        outputs = wanted(y if targets is None else targets)
        recipe["made_with"] = _guessed(recipe["model"], x, outputs) | recipe["model_options"]
    model = _model(recipe)
    return Posterior(model, likelihood, _prior(recipe, model), num_data=num_data), train


def reopen(path: str | Path, trust: bool, command: str) -> Run | Fit:
    """Open a run that the command line made; a function of the user's that makes its model is called again."""
    run = load(path, _model(recipe_of(path, trust, command, calls=["model"])))
    sampler = run.manifest.get("sampler")
    if sampler and not (isinstance(sampler.get("name"), str) and isinstance(sampler.get("options"), dict)):
        raise RunError(f"The sampler in the manifest of {path} has no name and options: {sampler}.")
    return run


def held_out(recipe: dict[str, Any], given: str | None = None) -> tuple[Any, torch.Tensor] | None:
    """Test data (x, y): those that are given by name or module:function, else the test part of the recipe's.

    None if the recipe's data are a function of the user's, which may have no test part.
    """
    data = _test_set(recipe, given)
    return None if data is None else examples(data)


def ood_inputs(recipe: dict[str, Any], name: str) -> Any:
    """Out-of-distribution inputs, by name or module:function; images are normalized as those that the run knows."""
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
    return called(name, partial(data_sets.load, name), {**options, "split": "test"})


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


def called(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What a factory makes with options that a user gave.

    What goes wrong inside a factory of the library is the options' fault, and is said in a sentence; what goes wrong
    inside a function of the user's is shown as it is.
    """
    written = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise ValueError(f"{name} can't be called with {written}: {error}.") from None
    try:
        return factory(**options)
    except _WRONG_TYPE as error:
        if ":" in name or not options:
            raise
        raise ValueError(
            f"{name} can't be made with {written}: {error}. Values are written as in JSON: std=0.5, widths=[50,50]."
        ) from error


def _model(recipe: dict[str, Any]) -> nn.Module:
    """The network that a recipe names, with the options that were guessed for it when it was first made."""
    name = recipe["model"]
    if ":" in name:
        model = called(name, imported(name), recipe["model_options"])
    else:
        model = called(name, partial(models.make, name), recipe.get("made_with", {}))
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} must return a torch.nn.Module; it returned {type(model).__name__}.")
    return model


def _guessed(name: str, x: Any, outputs: int) -> dict[str, Any]:
    """What the data say about the sizes of a network."""
    if name in ("mlp", "logistic"):
        return {"in_features": x[0].numel(), "out_features": outputs}
    image = {"in_channels": x.shape[1]} if isinstance(x, torch.Tensor) and x.dim() == 4 else {}
    return {"num_classes": outputs, **image}


def _likelihood(recipe: dict[str, Any], y: Any) -> Any:
    name, options = recipe["likelihood"], recipe["likelihood_options"]
    if name is None:
        name = "gaussian" if y.is_floating_point() else "categorical"
    kind = LIKELIHOODS.named(name)
    defaults = {"std": 0.5, "sampled": True} if name == "gaussian" else {}
    return called(f"--likelihood {name}", kind, {**defaults, **options})


def _prior(recipe: dict[str, Any], model: nn.Module) -> Any:
    if recipe["prior"] is None:
        return default(model)
    return called(f"--prior {recipe['prior']}", PRIORS.named(recipe["prior"]), recipe["prior_options"])

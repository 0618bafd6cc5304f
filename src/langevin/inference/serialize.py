"""Factories written down: how a sampler or a schedule is named in a manifest, and made again from there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from langevin import preconditioners, samplers
from langevin.core import schedules
from langevin.samplers.descent import Descent


def write_recipe(factory: Callable[..., Any] | None) -> dict[str, Any] | None:
    """The name and the options of `Class` or `partial(Class, option=…)`; None if it can't be written down.

    >>> write_recipe(partial(samplers.SGLD, lr=0.1))
    {'name': 'SGLD', 'options': {'lr': 0.1}}
    >>> write_recipe(partial(Descent, optimizer=partial(torch.optim.Adam, lr=0.1)))
    {'name': 'torch.optim.Adam', 'options': {'lr': 0.1}}
    """
    recipe = _described(factory)
    try:
        if json.loads(json.dumps(recipe)) == recipe and _made_from(recipe) is not None:
            return recipe
    except (TypeError, ValueError):
        pass
    return None


def _described(factory: Any) -> dict[str, Any]:
    if isinstance(factory, schedules.cyclical | schedules.sawtooth):
        return {"name": type(factory).__name__, "options": dataclasses.asdict(factory)}
    if isinstance(factory, partial) and not factory.args:
        if factory.func is Descent:
            return _described(factory.keywords["optimizer"])
        name, options = _name(factory.func), {key: _written(value) for key, value in factory.keywords.items()}
        return {"name": name, "options": options}
    return {"name": _name(factory), "options": {}}


def _name(maker: Any) -> str:
    name = getattr(maker, "__name__", "")
    return f"torch.optim.{name}" if getattr(torch.optim, name, None) is maker else name


def _written(value: Any) -> Any:
    if isinstance(value, preconditioners.Preconditioner):
        return {"preconditioner": type(value).__name__, "options": value.__getstate__()}
    return list(value) if isinstance(value, tuple) else value


def _read(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"preconditioner", "options"}:
        kind = getattr(preconditioners, value["preconditioner"], None)
        if not (isinstance(kind, type) and issubclass(kind, preconditioners.Preconditioner)):
            raise ValueError(f"{value['preconditioner']!r} is no preconditioner.")
        return kind(**value["options"])
    return value


def read_recipe(recipe: dict[str, Any]) -> Callable[..., Any]:
    """The factory that a recipe names: a sampler, a schedule, nothing else."""
    try:
        factory = _made_from(recipe)
    except (KeyError, TypeError, AttributeError, ValueError):
        factory = None
    if factory is None:
        raise ValueError(f"{recipe} names nothing that langevin or torch.optim.lr_scheduler has.")
    return factory


def _made_from(recipe: dict[str, Any]) -> Callable[..., Any] | None:
    name, options = recipe["name"], recipe["options"]
    if name.startswith("torch.optim."):
        optimizer = getattr(torch.optim, name.removeprefix("torch.optim."), None)
        if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
            return partial(Descent, optimizer=partial(optimizer, **options))
        return None
    for method in samplers.METHODS.values():
        if method.sampler.__name__ == name:
            return partial(method.sampler, **{key: _read(value) for key, value in options.items()})
    if name in ("cyclical", "sawtooth"):
        schedule: Callable[..., Any] = getattr(schedules, name)(**options)
        return schedule
    scheduler = getattr(torch.optim.lr_scheduler, name, None)
    if isinstance(scheduler, type) and issubclass(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return partial(scheduler, **options)
    return None

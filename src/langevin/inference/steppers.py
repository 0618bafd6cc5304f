"""Steppers: what moves parameters. Samplers, and beside them plain torch optimizers.

The contract, which `tests/contract/test_stepper.py` holds both to: a stepper is a `torch.optim.Optimizer` over the
parameters that it was made with. `step()` reads `p.grad` and changes `p` in place; all that the next step depends on is
in `param_groups` and `state`, as tensors and plain values, so a copy of both continues it exactly. A sampler has more
to say about itself (see `langevin.samplers.base`); an optimizer does not pretend to.

A factory makes the stepper of each chain: `make(params, num_data=…, seed=…, chain=…)`. This module turns what users
write into factories, and factories into what a manifest can hold and back.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from langevin.core import schedules
from langevin.preconditioners import PRECONDITIONERS, Preconditioner
from langevin.samplers import SAMPLERS, Sampler

SamplerLike = str | type[Sampler] | Callable[..., Sampler]
StepperFactory = Callable[..., Optimizer]
SchedulerFactory = Callable[[Any], LRScheduler]
_FILLED_IN = ("params", "num_data", "seed", "chain")  # by `sample`


def sampler_factory(sampler: SamplerLike, options: Mapping[str, Any] | None = None) -> Callable[..., Sampler]:
    """What makes the sampler of a chain, from a class, a registered name or a `partial`, with options beside it."""
    options = dict(options or {})
    if isinstance(sampler, str):
        sampler = SAMPLERS.named(sampler)
    kind = _class_of(sampler)
    if isinstance(sampler, Optimizer) or isinstance(kind, torch.nn.Module) or not callable(sampler):
        raise ValueError(
            f"Give the sampler's class with its options beside it, lv.sample(posterior, data, lv.SGLD, lr=1e-2); given "
            f"{'an object of ' if isinstance(sampler, Optimizer) else ''}{type(sampler).__name__}."
        )
    if isinstance(kind, type) and not issubclass(kind, Sampler):
        raise ValueError(
            f"{kind.__name__} is not a langevin.Sampler, so it can't sample; write lv.sample(posterior, data, lv.SGLD, "
            f"lr=1e-2). A torch optimizer fits: lv.fit(…, optimizer=…)."
        )
    given = {**(sampler.keywords if isinstance(sampler, partial) else {}), **options}
    if isinstance(kind, type):
        _check_options(kind, given)
    return partial(sampler, **options) if options else sampler


def full_batch_or(batch_size: Any, make: Callable[..., Any], num_data: int) -> Any:
    """The batch size; "full" for a sampler that needs all data in every step, unless another one is given."""
    needed = getattr(_class_of(make), "full_batch", False)
    return "full" if needed and batch_size in (None, num_data) else batch_size


def _check_options(kind: type[Sampler], options: Mapping[str, Any]) -> None:
    signature = inspect.signature(kind)
    known = [name for name in signature.parameters if name not in _FILLED_IN and name != "options"]
    if taken := [name for name in _FILLED_IN if name in options]:
        raise ValueError(f"{taken[0]}={options[taken[0]]!r} is not an option of the sampler: sample(…) fills it in.")
    try:
        signature.bind([], num_data=1, seed=0, chain=0, **options)
    except TypeError as error:
        hint = _hint(options, known)
        raise ValueError(f"{kind.__name__}: {error}; its options are {', '.join(known)}.{hint}") from None
    if not isinstance(options.get("lr", 0.0), Real | torch.Tensor):
        raise ValueError(f"lr must be a positive number; given lr={options['lr']!r}. Write lr=1e-2, for example.")


def _hint(options: Mapping[str, Any], known: Sequence[str]) -> str:
    """What was probably meant; options of `sample` stand beside those of the sampler."""
    from langevin.inference.sample import sample

    possible = [*known, *inspect.signature(sample).parameters]
    for name in options:
        if name not in possible and (close := difflib.get_close_matches(name, possible, 1, cutoff=0.9)):
            return f" Write {close[0]}=…, if that is meant."
    return " Write lr=1e-2, for example." if "lr" not in options else ""


@dataclass(frozen=True)
class OptimizerFactory:
    """Makes a plain torch optimizer: `OptimizerFactory(partial(torch.optim.Adam, lr=1e-3))`."""

    make: Callable[..., Optimizer]

    def __post_init__(self) -> None:
        if isinstance(self.make, Optimizer) or not callable(self.make):
            raise ValueError(
                "Give the optimizer's class with its options, not an object: "
                "optimizer=partial(torch.optim.Adam, lr=1e-3)."
            )

    def __call__(
        self, params: Sequence[torch.Tensor], *, num_data: int, seed: int, chain: int | Sequence[int]
    ) -> Optimizer:
        """The optimizer of these parameters; it has no use for the rest."""
        try:
            optimizer = self.make(list(params))
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"optimizer can't be made: {error}. Write optimizer=partial(torch.optim.Adam, lr=1e-3)."
            ) from error
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Sampler | torch.optim.LBFGS):
            raise ValueError(
                f"{type(optimizer).__name__} can't fit by mini-batches; write "
                f"optimizer=partial(torch.optim.Adam, lr=1e-3). Samplers are for lv.sample, LBFGS for lv.find_map."
            )
        return optimizer


def write_recipe(factory: Callable[..., Any] | None) -> dict[str, Any] | None:
    """The name and the options of `Class` or `partial(Class, option=…)`; None if it is not serializable.

    >>> write_recipe(partial(SAMPLERS["sgld"], lr=0.1))
    {'name': 'SGLD', 'options': {'lr': 0.1}}
    >>> write_recipe(OptimizerFactory(partial(torch.optim.Adam, lr=0.1)))
    {'name': 'torch.optim.Adam', 'options': {'lr': 0.1}}
    """
    recipe = _described(factory)
    try:
        if json.loads(json.dumps(recipe)) == recipe and _class_of(_made_from(recipe)) is _class_of(factory):
            return recipe
    except (TypeError, ValueError):
        pass
    return None


def read_recipe(recipe: dict[str, Any]) -> Callable[..., Any]:
    """The factory that a recipe names: a sampler, an optimizer of torch, a schedule, nothing else."""
    try:
        factory = _made_from(recipe)
    except (KeyError, TypeError, AttributeError, ValueError):
        factory = None
    if factory is None:
        raise ValueError(f"{recipe} is neither registered in langevin nor in torch.optim.")
    return factory


def _described(factory: Any) -> dict[str, Any]:
    if isinstance(factory, OptimizerFactory):
        factory = factory.make
    if isinstance(factory, schedules.cyclical | schedules.sawtooth):
        return {"name": type(factory).__name__, "options": dataclasses.asdict(factory)}
    if isinstance(factory, partial) and not factory.args:
        return {
            "name": _name(factory.func),
            "options": {key: _serialized(value) for key, value in factory.keywords.items()},
        }
    return {"name": _name(factory), "options": {}}


def _class_of(factory: Any) -> Any:
    """What is called in the end; of a schedule that is an object, its class."""
    if isinstance(factory, OptimizerFactory):
        factory = factory.make
    if isinstance(factory, schedules.cyclical | schedules.sawtooth):
        return type(factory)
    return factory.func if isinstance(factory, partial) else factory


def _name(maker: Any) -> str:
    name = getattr(maker, "__name__", "")
    return f"torch.optim.{name}" if getattr(torch.optim, name, None) is maker else name


def _serialized(value: Any) -> Any:
    if isinstance(value, Preconditioner):
        return {"preconditioner": type(value).__name__, "options": value.__getstate__()}
    return list(value) if isinstance(value, tuple) else value


def _deserialized(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"preconditioner", "options"}:
        return PRECONDITIONERS.exports()[value["preconditioner"]](**value["options"])
    return value


def _made_from(recipe: dict[str, Any]) -> Callable[..., Any] | None:
    name, options = recipe["name"], recipe["options"]
    if name.startswith("torch.optim."):
        optimizer = getattr(torch.optim, name.removeprefix("torch.optim."), None)
        if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
            return OptimizerFactory(partial(optimizer, **options))
        return None
    if name in (samplers := SAMPLERS.exports()):
        return partial(samplers[name], **{key: _deserialized(value) for key, value in options.items()})
    if name in ("cyclical", "sawtooth"):
        schedule: Callable[..., Any] = getattr(schedules, name)(**options)
        return schedule
    scheduler = getattr(torch.optim.lr_scheduler, name, None)
    if isinstance(scheduler, type) and issubclass(scheduler, LRScheduler):
        return partial(scheduler, **options)
    return None

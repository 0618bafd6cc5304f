"""`langevin fit`: fit a distribution over the weights, to a directory."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from langevin.approximations import APPROXIMATIONS, SWA, SWAG, Approximation
from langevin.cli import options
from langevin.cli.options import parse_options
from langevin.cli.tables import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

MethodName = Annotated[
    str, typer.Option(callback=options.choice("--method", APPROXIMATIONS), help=f"One of {', '.join(APPROXIMATIONS)}.")
]
MethodOption = Annotated[list[str] | None, options.repeated("the method", "cycle=100")]
OptimizerOption = Annotated[list[str] | None, options.repeated("the optimizer", "weight_decay=0.0")]


def fit(
    model: options.Model,
    data: options.Data,
    out: options.Out,
    method: MethodName = "meanfield",
    method_option: MethodOption = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the optimizer.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim (Adam; for swa and swag SGD).")] = None,
    optimizer_option: OptimizerOption = None,
    steps: Annotated[int | None, typer.Option(help="Steps in all (10000).")] = None,
    burn_in: Annotated[int, typer.Option(help="Steps before the first snapshot.")] = 0,
    init: Annotated[Path | None, typer.Option(help="Start where this run or fit ended.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws that a prediction averages over (30; Laplace: 100).")] = None,
    batch_size: options.BatchSize = None,
    likelihood: options.Likelihood = None,
    likelihood_option: options.LikelihoodOption = None,
    prior: options.Prior = None,
    prior_option: options.PriorOption = None,
    model_option: options.ModelOption = None,
    data_option: options.DataOption = None,
    num_data: options.NumData = None,
    seed: options.Seed = 0,
    device: options.Device = None,
) -> None:
    """Fit a distribution over the weights, to a directory.

    These are the cheap alternatives to sampling. meanfield, lowrank, ivon: variational inference. swa, swag: averages
    of the iterates of SGD. hwa: averages of variational parameters over a cyclical learning rate. mcdropout: dropout
    that stays on in predictions. laplace: the curvature at the mode, which LBFGS searches without --init.
    deepensemble, laplace and ivon bring their own optimizer.

    Examples:

    \b
        langevin fit --method meanfield --model mlp --data digits --lr 0.01 \\
            --out runs/meanfield
        langevin fit --method hwa --init runs/meanfield --lr 0.02 \\
            --method-option cycle=200 --method-option low=0.001 \\
            --model mlp --data digits --out runs/hwa
        langevin fit --method laplace --method-option structure=kfac \\
            --model logistic --data digits --out runs/laplace

    Ctrl-C leaves a fit that `langevin resume` continues. A fit predicts like a run: lv.load("runs/hwa").predict(x).
    """
    from langevin.cli.recipes import build, new_recipe
    from langevin.inference.fit import fit as fitted
    from langevin.loading import load

    approximation = make_approximation(method, parse_options(method_option))
    takes_steps = approximation.takes_steps
    chooses = takes_steps and not approximation.own_optimizer
    if not chooses and (lr is not None or optimizer or optimizer_option):
        what = "is an optimizer itself (--method-option lr=0.1)" if takes_steps else "takes no steps"
        raise ValueError(f"--method {method} {what}: leave out --lr, --optimizer and --optimizer-option.")
    make_optimizer = _optimizer(approximation, optimizer, lr, parse_options(optimizer_option)) if chooses else None
    recipe = new_recipe(
        model=model,
        model_options=parse_options(model_option),
        data=data,
        data_options=parse_options(data_option),
        likelihood=likelihood,
        likelihood_options=parse_options(likelihood_option),
        prior=prior,
        prior_options=parse_options(prior_option),
        num_data=num_data,
        seed=seed,
    )
    options.check_new(out, "fit")
    posterior, train = build(recipe)
    found = fitted(
        posterior,
        train,
        approximation,
        optimizer=make_optimizer,
        steps=10_000 if steps is None and takes_steps else steps,
        burn_in=burn_in,
        init=None if init is None else load(init, posterior.model),
        draws=draws,
        batch_size=batch_size,
        seed=seed,
        device=device,
        out=out,
        tags={"command": recipe},
    )
    loss = found.trace("loss")[0][-1]
    say(f"{approximation!r} in {out}, after {len(found.snapshots)} snapshots; loss {loss:.4g}.")


def make_approximation(name: str, given: dict[str, Any]) -> Approximation:
    """The registered approximation of that name; where an option is an approximation itself, its name will do."""
    from langevin.cli.recipes import called

    kind = APPROXIMATIONS.named(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := [option for option in given if option not in fields]:
        raise ValueError(f"--method {name} has no option {unknown[0]!r}; it has {', '.join(fields)}.")
    for option, value in given.items():
        default: Any = fields[option].default_factory
        if isinstance(value, str) and default is not dataclasses.MISSING and isinstance(default(), Approximation):
            given = given | {option: make_approximation(value, {})}
    made: Approximation = called(f"--method {name}", kind, given)
    return made


def _optimizer(
    approximation: Approximation, name: str | None, lr: float | None, given: dict[str, Any]
) -> Callable[..., Optimizer]:
    """The optimizer's class with its options, tried out on a parameter."""
    from langevin.cli.recipes import called

    kind: Any = getattr(torch.optim, name or ("SGD" if isinstance(approximation, SWA | SWAG) else "Adam"), None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"--optimizer {name}: torch.optim has no such class; write --optimizer Adam.")
    if lr is None:
        raise ValueError(f"{type(approximation).__name__} takes steps, so it needs a learning rate: --lr 0.01.")
    if kind is torch.optim.SGD:  # as it is used for networks
        given = {"momentum": 0.9, **given}
    chosen = {"lr": lr, **given}
    called(f"--optimizer {kind.__name__}", partial(kind, [torch.zeros(1, requires_grad=True)]), chosen)
    return partial(kind, **chosen)

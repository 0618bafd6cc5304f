"""Options that several commands share, and how their values are read. The choices follow from the registries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from langevin import data as data_sets
from langevin import models
from langevin.core.likelihoods import LIKELIHOODS
from langevin.core.priors import PRIORS
from langevin.storage import manifest as manifests

_SEEDS = 2**64


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """The options that were given as name=value, the values as in JSON; what is not JSON is a string.

    >>> parse_options(["widths=[50,50]", "activation=tanh"])
    {'widths': [50, 50], 'activation': 'tanh'}
    """
    options = {}
    for option in given or []:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise ValueError(f"{option!r} is not of the form name=value.")
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def choice(option: str, known: Iterable[str]) -> Callable[[str | None], str | None]:
    """A check that the value of an option is one of these, in any case; what is registered later counts."""

    def check(value: str | None) -> str | None:
        if value is None:
            return None
        if value.lower() not in known:
            raise ValueError(f"{option} {value}: choose one of {', '.join(known)}.")
        return value.lower()

    return check


def check_new(out: Path, command: str) -> None:
    """Raise if the directory contains a run, or can't be one: before data are loaded, not after."""
    if manifests.exists(out):
        raise ValueError(
            f"{out} already contains a run, which is never overwritten. Continue it with langevin resume {out}, or "
            f"choose another directory: langevin {command} … --out {out}-2."
        )
    _check_parent("--out", out)


def check_writable(option: str, path: Path, suffix: str) -> None:
    """Raise if a file of this kind can't be written there: before it is computed, not after."""
    if path.suffix != suffix:
        raise ValueError(f"{option} {path}: the name must end in {suffix}; write {option} {path.with_suffix(suffix)}.")
    if path.is_dir():
        raise ValueError(f"{option} {path} is a directory; write {option} {path / ('report' + suffix)}.")
    _check_parent(option, path.parent)


def _check_parent(option: str, path: Path) -> None:
    """Raise unless this is a directory that can be written to, or can be created."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {path} can't be written: {there} is a file, not a directory.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {path} can't be written: {there} is not writable. Choose another place.")


def _seed(value: int | None) -> int | None:
    if value is not None and not 0 <= value < _SEEDS:
        raise ValueError(f"--seed {value}: give an integer from 0 to 2^64 - 1, such as --seed 0.")
    return value


def _device(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        device = torch.device(value)
        if device.type != "cuda":
            torch.zeros((), device=device).item()
        elif not torch.cuda.is_available():
            raise ValueError(f"--device {value}: torch finds no CUDA device here. Leave it out, or write --device cpu.")
        elif (device.index or 0) >= (count := torch.cuda.device_count()):  # a tensor there would take memory of it
            raise ValueError(f"--device {value}: there are {count} CUDA devices, cuda:0 to cuda:{count - 1}.")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"--device {value} can't be used: {reason}. Leave it out, or write --device cpu.") from None
    return value


def repeated(what: str, example: str) -> Any:
    """An option that may be given several times, as name=value."""
    return typer.Option(
        metavar="NAME=VALUE", help=f"An option of {what}, its value as in JSON: {example}. May be given several times."
    )


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the run.")]
Model = Annotated[
    str, typer.Option(help=f"A network by name ({', '.join(models.names())}), or your own: module:function.")
]
ModelOption = Annotated[list[str] | None, repeated("the model", "widths=[50,50]")]
Data = Annotated[
    str, typer.Option(help=f"Training data by name ({', '.join(data_sets.names())}), or your own: module:function.")
]
DataOption = Annotated[list[str] | None, repeated("the data", "size=1000")]
Likelihood = Annotated[
    str | None,
    typer.Option(
        callback=choice("--likelihood", LIKELIHOODS),
        help=f"One of {', '.join(LIKELIHOODS)}. By default from the targets: categorical for classes, gaussian with a "
        f"sampled standard deviation for real numbers.",
    ),
]
LikelihoodOption = Annotated[list[str] | None, repeated("the likelihood", "std=0.1")]
Prior = Annotated[
    str | None,
    typer.Option(
        callback=choice("--prior", PRIORS),
        help=f"One of {', '.join(PRIORS)}, the same for all weights. By default lv.priors.default(model): Gaussians "
        f"scaled by the fan-in.",
    ),
]
PriorOption = Annotated[list[str] | None, repeated("the prior", "std=1.0")]
NumData = Annotated[int | None, typer.Option(help="Number of training examples, where the data have no length.")]
Out = Annotated[Path, typer.Option(help="The directory of the run; it must not contain a run.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step (128).")]
Seed = Annotated[int, typer.Option(callback=_seed, help="Random seed.")]
Device = Annotated[str | None, typer.Option(callback=_device, help="Where to compute: cpu, cuda, cuda:1, mps, …")]
Mesh = Annotated[
    str | None,
    typer.Option(help="Under torchrun: processes along chains and along the parts of a batch, chains=2,data=2."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Call the functions (module:function) that the run names, if they are yours."),
]

"""The commands that judge a run: `langevin evaluate` and `langevin report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langevin import recipes as named

if TYPE_CHECKING:
    from langevin.evaluation.attacks import Attack
    from langevin.report import Report

RunPath = Annotated[Path, typer.Argument(help="The directory of the run.")]
Test = Annotated[
    str | None, typer.Option(help="Test data by name or module:function; by default the test part of its own data.")
]
Ood = Annotated[
    list[str] | None,
    typer.Option(help="Data of another kind, by name or module:function; may be given several times."),
]
AttackBy = Annotated[str | None, typer.Option("--attack", help="fgsm or pgd, through the whole predictive.")]
Eps = Annotated[float, typer.Option(help="The most that an attack changes a number of the input.")]
Against = Annotated[
    list[Path] | None, typer.Option(help="The directory of another run to compare with; may be given several times.")
]


def evaluate(
    path: RunPath,
    test: Test = None,
    ood: Ood = None,
    attack: AttackBy = None,
    eps: Eps = 0.1,
    against: Against = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers to this file.")] = None,
) -> None:
    """Judge a run: temperature, mixing, calibration, foreign inputs, attacks. `langevin report` makes a page of it.

    Example:

        langevin evaluate runs/digits --attack fgsm --eps 0.2
    """
    found = _judged(path, test, ood, attack, eps, against)
    typer.echo(str(found))
    if json is not None:
        found.save(json if json.suffix == ".json" else json.with_suffix(".json"))


def report(
    path: RunPath,
    test: Test = None,
    ood: Ood = None,
    attack: AttackBy = None,
    eps: Eps = 0.1,
    against: Against = None,
    out: Annotated[Path | None, typer.Option(help="The page to write; by default RUN/report.html.")] = None,
) -> None:
    """Write a page about a run: verdicts in plain words, numbers, pictures, configuration, citations.

    Example:

        langevin report runs/atmc --against runs/sgd --ood notmnist
    """
    found = _judged(path, test, ood, attack, eps, against)
    typer.echo(str(found))
    typer.echo(f"Open in a browser: {found.save(out or path / 'report.html')}")


def _judged(
    path: Path, test: str | None, ood: list[str] | None, attack: str | None, eps: float, against: list[Path] | None
) -> Report:
    from langevin.report import evaluate as judge

    recipe = named.command_of(path)
    data = named.held_out(recipe, test)
    if data is None:
        raise ValueError(f"The data of {path} are a function of yours; name the test data: --test module:function.")
    return judge(
        named.reopen(path),
        data,
        ood={name: named.foreign(recipe, name) for name in ood or []},
        attack=_attack(attack, eps),
        against={name: named.reopen(other) for name, other in _names(against or []).items()},
        name=path.resolve().name,
    )


def _names(paths: list[Path]) -> dict[str, Path]:
    """The runs by the name of their directory, or by its whole path where two have the same."""
    short = [path.resolve().name for path in paths]
    return {name if short.count(name) == 1 else str(path): path for name, path in zip(short, paths, strict=True)}


def _attack(kind: str | None, eps: float) -> Attack | None:
    from langevin.evaluation.attacks import FGSM, PGD

    if kind is None:
        return None
    known: dict[str, type[FGSM] | type[PGD]] = {"fgsm": FGSM, "pgd": PGD}
    if kind not in known:
        raise ValueError(f"--attack {kind}: choose fgsm or pgd.")
    return known[kind](eps)

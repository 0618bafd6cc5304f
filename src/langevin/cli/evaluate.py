"""`langevin evaluate`: evaluate a run, in numbers and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langevin.cli import options
from langevin.cli.tables import is_terminal, say, show_findings

if TYPE_CHECKING:
    from langevin.evaluation.attacks import Attack
    from langevin.report import Report

Test = Annotated[
    str | None, typer.Option(help="Test data by name or module:function. By default the test part of its own data.")
]
Ood = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Out-of-distribution data by name or module:function. May be given several times."
    ),
]
AttackName = Annotated[
    str | None,
    typer.Option("--attack", help="Adversarial attack (fgsm or pgd) on the mean prediction of all samples."),
]
Eps = Annotated[float | None, typer.Option(help="The largest change of an input's value by the attack (0.1).")]
Baseline = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN", help="A run to compare with. May be given several times."),
]


def evaluate(
    path: options.RunPath,
    test: Test = None,
    ood: Ood = None,
    attack: AttackName = None,
    eps: Eps = None,
    baseline: Baseline = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers to this file (.json).")] = None,
    trust: options.Trust = False,
) -> None:
    """Evaluate a run on test data.

    Temperature, convergence, calibration, out-of-distribution data, adversarial attacks, comparison with baselines.

    Examples:

    \b
        langevin evaluate runs/digits --attack fgsm --eps 0.2
        langevin evaluate runs/atmc --baseline runs/sgd --baseline runs/swag \\
            --ood notmnist --json atmc.json
        langevin evaluate runs/mine --test mypackage:test --trust

    `langevin report` makes a page of it.
    """
    if json is not None:
        options.check_writable("--json", json, ".json")
    found = evaluated("evaluate", path, test=test, ood=ood, attack=attack, eps=eps, baseline=baseline, trust=trust)
    show(found)
    if json is not None:
        found.save(json)


def evaluated(
    command: str,
    path: Path,
    *,
    test: str | None,
    ood: list[str] | None,
    attack: str | None,
    eps: float | None,
    baseline: list[Path] | None,
    trust: bool,
) -> Report:
    """The report about a run that the command line made."""
    from langevin.cli.recipes import held_out, ood_inputs, recipe_of, reopen
    from langevin.report import evaluate as evaluate_run

    chosen = _attack(attack, eps)
    recipe = recipe_of(path, trust, command, calls=["model"])
    run = reopen(path, trust, command)
    baselines = {
        name: reopen(other, trust, f"{command} {path} --baseline") for name, other in _names(baseline or []).items()
    }
    data = held_out(recipe, test)
    if data is None:
        raise ValueError(
            f"The data of {path} are a function of yours, {recipe['data']}, which may have no test part. Name the test "
            f"data: langevin {command} {path} --test module:function."
        )
    return evaluate_run(
        run,
        data,
        ood={name: ood_inputs(recipe, name) for name in ood or []},
        attack=chosen,
        baselines=baselines,
        name=path.resolve().name,
    )


def show(found: Report) -> None:
    """Print the verdicts and the scores."""
    if is_terminal():
        say(f"{found.title}: {found.summary}")
        show_findings((verdict.level, verdict.about, verdict.message) for verdict in found.verdicts)
        say(*str(found.scores).splitlines())
    else:
        say(*str(found).splitlines())


def _names(paths: list[Path]) -> dict[str, Path]:
    """The runs by the name of their directory, or by its whole path where two have the same."""
    short = [path.resolve().name for path in paths]
    return {name if short.count(name) == 1 else str(path): path for name, path in zip(short, paths, strict=True)}


def _attack(name: str | None, eps: float | None) -> Attack | None:
    from langevin.evaluation.attacks import FGSM, PGD

    if name is None:
        if eps is not None:
            raise ValueError("--eps is the size of an attack; name it: --attack fgsm.")
        return None
    known: dict[str, type[FGSM] | type[PGD]] = {"fgsm": FGSM, "pgd": PGD}
    if name not in known:
        raise ValueError(f"--attack {name}: choose fgsm or pgd.")
    return known[name](0.1 if eps is None else eps)

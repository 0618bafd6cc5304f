"""`langevin report`: write a page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from langevin.cli import options
from langevin.cli.evaluate import AttackName, Baseline, Eps, Ood, Test, evaluated, show
from langevin.cli.tables import say


def report(
    path: options.RunPath,
    test: Test = None,
    ood: Ood = None,
    attack: AttackName = None,
    eps: Eps = None,
    baseline: Baseline = None,
    out: Annotated[Path | None, typer.Option(help="The page to write (.html); by default RUN/report.html.")] = None,
    trust: options.Trust = False,
) -> None:
    """Write the report of a run, one HTML page.

    Verdicts in plain words, numbers, figures, configuration, citations.

    Examples:

    \b
        langevin report runs/digits
        langevin report runs/atmc --baseline runs/sgd --ood notmnist \\
            --out atmc.html

    The page is one file, which needs no network.
    """
    page = out or path / "report.html"
    options.check_writable("--out", page, ".html")
    found = evaluated("report", path, test=test, ood=ood, attack=attack, eps=eps, baseline=baseline, trust=trust)
    show(found)
    say(f"Open in a browser: {found.save(page)}")

"""`langevin demo`: one network, a deep ensemble and samples of the posterior, in about a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from langevin.cli.tables import say, show_table


def demo(
    out: Annotated[Path, typer.Option(help="Where the report, the figure and the results go.")] = Path("langevin-demo"),
) -> None:
    """Compare one network, a deep ensemble and samples of the posterior on small images, in about a minute.

    All three come out of one call, lv.sample(posterior, train, temperature="auto"), on scikit-learn's digits: every
    chain starts at an optimum of its own. The command prints a table and writes a report.

    Example:

    \b
        langevin demo --out langevin-demo
    """
    from langevin.demo import run_demo

    rows = run_demo(out)
    show_table(
        ("", "accuracy", "NLL", "calibration error", "OOD AUROC", "mean confidence (OOD)"),
        [
            (
                row.method,
                f"{row.accuracy:.1%}",
                f"{row.nll:.3f}",
                f"{row.calibration_error:.3f}",
                f"{row.ood_auroc:.3f}",
                f"{row.ood_confidence:.2f}",
            )
            for row in rows
        ],
    )
    results = json.loads((out / "results.json").read_text())
    target, measured = results["temperature"]["target"], results["temperature"]["measured"]
    say(
        "",
        f"Of the temperatures 1, 0.3, 0.1 and 0.03, {target:g} was chosen on a part of the training digits; measured "
        f"{measured:.3g}. The run's own verdict: {results['verdict']}.",
        "Out-of-distribution (OOD) inputs are patches of photographs: confidence should be low there.",
        f"Open the report in a browser: {out / 'report.html'}",
    )

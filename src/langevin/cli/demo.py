"""`langevin demo`: SGD against SGLD in about a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from langevin.cli.tables import say, show_table


def demo(
    out: Annotated[Path, typer.Option(help="Where the report, the figure and the results go.")] = Path("langevin-demo"),
) -> None:
    """Compare SGD with SGLD on small images, in a minute.

    Both train on scikit-learn's digits. SGD gives one set of weights, SGLD samples of the posterior. The command
    prints a table and writes a report.

    Example:

    \b
        langevin demo --out langevin-demo
    """
    from langevin.demo import run_demo

    rows = run_demo(out)
    show_table(
        ("", "accuracy", "NLL", "calibration error", "mean confidence (test)", "mean confidence (OOD)"),
        [
            (
                row.method,
                f"{row.accuracy:.1%}",
                f"{row.nll:.3f}",
                f"{row.calibration_error:.3f}",
                f"{row.confidence:.2f}",
                f"{row.ood_confidence:.2f}",
            )
            for row in rows
        ],
    )
    measured = json.loads((out / "results.json").read_text())["temperature"]
    say(
        "",
        f"SGLD sampled at temperature {measured['measured']:.3f} ± {measured['error']:.3f} (target temperature 1.00).",
        "Mean confidence should be close to the accuracy on the test digits, and low on out-of-distribution (OOD) "
        "inputs, here patches of photographs.",
        f"Open the report in a browser: {out / 'report.html'}",
    )

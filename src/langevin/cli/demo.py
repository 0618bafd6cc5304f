"""`langevin demo`: the whole story in about a minute."""

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

    Both learn scikit-learn's digits. SGD gives one set of weights, SGLD samples of the posterior. The command ends in a
    table and a report.

    Example:

    \b
        langevin demo --out langevin-demo
    """
    from langevin.demo import run_demo

    rows = run_demo(out)
    show_table(
        ("", "accuracy", "NLL", "calibration error", "mean confidence", "on out-of-distribution inputs"),
        [
            (
                row.method,
                f"{row.accuracy:.1%}",
                f"{row.nll:.3f}",
                f"{row.calibration_error:.3f}",
                f"{row.confidence_on_digits:.2f}",
                f"{row.confidence_on_photographs:.2f}",
            )
            for row in rows
        ],
    )
    measured = json.loads((out / "results.json").read_text())["temperature"]
    say(
        "",
        f"SGLD sampled at temperature {measured['measured']:.3f} ± {measured['error']:.3f} (target temperature 1.00).",
        "The mean confidence should be near the accuracy on digits, and low on photographs, which are "
        "out-of-distribution inputs.",
        f"Open the report in a browser: {out / 'report.html'}",
    )

"""`langevin doctor`: check a set-up before it is sampled."""

from __future__ import annotations

from typing import Annotated

import typer

from langevin.cli.tables import show_findings


def doctor(
    factory: Annotated[str, typer.Argument(help="module:function that returns (posterior, data) or a dict of both.")],
    search: Annotated[
        bool, typer.Option(help="Predict the temperature as find_lr does; it takes some thousand steps.")
    ] = True,
) -> None:
    """Check a set-up before it is sampled. The exit code is 1 if something is wrong.

    Example:

    \b
        langevin doctor mypackage:setup

    The function returns a posterior and its training data, or a dict with "posterior", "data" and, if wanted,
    "sampler" (partial(lv.SGLD, lr=0.1)), "loss" (your own loss of x and y) and "batch_size".

    Checked: BatchNorm and dropout, a loss that is summed instead of averaged, num_data against the data set, targets,
    frozen parameters, the learning rate against the stability limit 2/λ_max and against what find_lr finds.
    """
    from langevin.cli.recipes import imported
    from langevin.core.posterior import Posterior
    from langevin.inference.doctor import examine

    given = imported(factory)()
    if isinstance(given, tuple) and len(given) == 2:
        given = {"posterior": given[0], "data": given[1]}
    if not isinstance(given, dict) or not isinstance(given.get("posterior"), Posterior) or "data" not in given:
        raise ValueError(
            f"{factory} must return (posterior, data) or a dict with both; it returned {type(given).__name__}."
        )
    if unknown := set(given) - {"posterior", "data", "sampler", "loss", "batch_size"}:
        raise ValueError(f"{factory} returned {sorted(unknown)}, which the doctor does not know; see --help.")
    findings = examine(given.pop("posterior"), given.pop("data"), search=search, **given)
    show_findings(findings)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)

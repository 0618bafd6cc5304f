"""`langevin doctor`: check a set-up before it is sampled, or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from langevin.cli.tables import show_findings

if TYPE_CHECKING:
    from langevin.inference.doctor import Finding


def doctor(
    factory: Annotated[
        str | None, typer.Argument(help="module:function that returns (posterior, data) or a dict of both.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Check this device (cuda, cuda:1, cpu) instead.")] = None,
    search: Annotated[
        bool, typer.Option(help="Predict the temperature as find_lr does; it takes some thousand steps.")
    ] = True,
) -> None:
    """Check a set-up before it is sampled. The exit code is 1 if something is wrong.

    Example:

    \b
        langevin doctor mypackage:setup
        langevin doctor --device cuda

    The function returns a posterior and its training data, or a dict with "posterior", "data" and, if wanted,
    "sampler" (partial(lv.SGLD, lr=0.1)), "loss" (your own loss of x and y) and "batch_size".

    Checked: BatchNorm and dropout, a loss that is summed instead of averaged, num_data against the data set, targets,
    frozen parameters, the learning rate against the stability limit 2/λ_max and against what find_lr finds. Of a
    device: that its kernels agree with the CPU, the moments of the noise, that a run repeats itself, and its speed.
    """
    from langevin.cli.recipes import imported
    from langevin.core.posterior import Posterior
    from langevin.inference.doctor import examine

    if (factory is None) == (device is None):
        raise ValueError("Give a set-up or a device: langevin doctor mypackage:setup, langevin doctor --device cuda.")
    if factory is None:
        _check(str(device))
        return
    given = imported(factory)()
    if isinstance(given, tuple) and len(given) == 2:
        given = {"posterior": given[0], "data": given[1]}
    if not isinstance(given, dict) or not isinstance(given.get("posterior"), Posterior) or "data" not in given:
        raise ValueError(
            f"{factory} must return (posterior, data) or a dict with both; it returned {type(given).__name__}."
        )
    if unknown := set(given) - {"posterior", "data", "sampler", "loss", "batch_size"}:
        raise ValueError(f"{factory} returned {sorted(unknown)}, which the doctor does not know; see --help.")
    _show(examine(given.pop("posterior"), given.pop("data"), search=search, **given))


def _check(device: str) -> None:
    from langevin.inference.device_check import examine_device

    _show(examine_device(device))


def _show(findings: list[Finding]) -> None:
    show_findings(findings)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)

"""Commands of earlier versions, which are now modules of the repository."""

from __future__ import annotations

import shlex

import typer

from langevin.cli.tables import say

MODULES = {"reproduce": "reproductions", "bench": "benchmarks"}
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def moved(context: typer.Context) -> None:
    """Say where the command is now."""
    name = str(context.info_name)
    now = shlex.join(["python", "-m", MODULES[name], *context.args])
    say(
        f"langevin: `langevin {name}` is not part of the installed package any more. From a clone of the repository, "
        f"run: {now}",
        err=True,
    )
    raise typer.Exit(2)

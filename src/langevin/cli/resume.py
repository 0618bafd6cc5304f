"""`langevin resume`: continue a run or a fit."""

from __future__ import annotations

from typing import Annotated

import typer

from langevin.cli import options
from langevin.cli.logging import Log, Validation, logging
from langevin.cli.tables import say


def resume(
    path: options.RunPath,
    steps: Annotated[int | None, typer.Option(help="The new total of steps; by default as planned.")] = None,
    chains: Annotated[int | None, typer.Option(help="The new total of chains, to add some.")] = None,
    device: options.Device = None,
    log: Log = None,
    validation: Validation = None,
    mesh: options.Mesh = None,
    trust: options.Trust = False,
) -> None:
    """Continue a run or a fit from its last checkpoint.

    The samples are those that an uninterrupted run would have drawn.

    Examples:

    \b
        langevin resume runs/digits
        langevin resume runs/digits --steps 20000 --chains 4
        langevin resume runs/mine --trust

    A run that was sampled with functions of yours (module:function) names them in its manifest. They are called only
    with --trust, since anyone may have written the manifest of a run that was sent to you.
    """
    from langevin.cli.recipes import build, recipe_of
    from langevin.cli.sample import conclude
    from langevin.ensembles.fit import Fit
    from langevin.inference.distributed import is_main_process
    from langevin.inference.resume import resume as continued

    recipe = recipe_of(path, trust, "resume")
    posterior, train = build(recipe)
    with logging(log, posterior, path, recipe, validation) as callbacks:
        run = continued(
            path, posterior, train, steps=steps, chains=chains, device=device, callbacks=callbacks, mesh=mesh
        )
    if isinstance(run, Fit):
        say(f"{run.approximation!r} in {path}, after {len(run.snapshots)} snapshots.")
    elif is_main_process():
        conclude(run)

"""The options --log and --validation of the commands that sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from langevin.core.posterior import Posterior
from langevin.recipes import held_out

Log = Annotated[str | None, typer.Option(help='"tensorboard": write loss, temperature, … to OUT/tensorboard.')]
Validation = Annotated[
    str | None,
    typer.Option(help="Held-out data for --log, by name or module:function; by default the test part of named data."),
]


@contextmanager
def logging(
    log: str | None,
    posterior: Posterior,
    out: Path,
    recipe: dict[str, Any],
    validation: str | None,
    begun: bool = False,
) -> Iterator[list[Any]]:
    """The callbacks that --log asks for; the samples of a run that has begun count as well."""
    if log is None:
        yield []
        return
    if log != "tensorboard":
        raise ValueError(f"--log {log}: choose tensorboard.")
    from langevin.ensembles.run import load
    from langevin.integrations.tensorboard import TensorBoard

    started = load(out, posterior.model, posterior.likelihood) if begun else None
    data = held_out(recipe, validation)
    with TensorBoard(posterior, out / "tensorboard", validation=data, begun=started) as callback:
        typer.echo(f"Look on with: tensorboard --logdir {out / 'tensorboard'}", err=True)
        yield [callback]

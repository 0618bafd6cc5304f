"""The options --log and --validation of the commands that sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from langevin.cli.options import choice
from langevin.cli.tables import say
from langevin.core.posterior import Posterior

Log = Annotated[
    str | None,
    typer.Option(
        callback=choice("--log", ["tensorboard"]), help='"tensorboard": write loss, temperature, … to OUT/tensorboard.'
    ),
]
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
) -> Iterator[list[Any]]:
    """The callbacks that --log asks for; the samples of a run that exists already count as well."""
    if log is None:
        if validation is not None:
            raise ValueError("--validation is for --log; write --log tensorboard too.")
        yield []
        return
    from langevin.cli.recipes import held_out
    from langevin.ensembles.run import Run
    from langevin.inference.distributed import is_main_process
    from langevin.integrations.tensorboard import TensorBoard
    from langevin.loading import load
    from langevin.storage import manifest as manifests

    if (out / "tensorboard").is_symlink():
        raise ValueError(f"{out / 'tensorboard'} is a symbolic link, which is not followed; remove it.")
    existing = load(out, posterior.model, posterior.likelihood) if manifests.exists(out) else None
    begun = existing if isinstance(existing, Run) else None
    with TensorBoard(posterior, out / "tensorboard", validation=held_out(recipe, validation), begun=begun) as callback:
        if is_main_process():
            say(f"View with: tensorboard --logdir {out / 'tensorboard'}", err=True)
        yield [callback]

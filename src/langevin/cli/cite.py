"""`langevin cite`: the BibTeX entry of a method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from langevin.cli.tables import say


def cite(what: Annotated[str, typer.Argument(help="A method's name or the directory of a run.")]) -> None:
    """Print the BibTeX entry of a method.

    Examples:

    \b
        langevin cite sgld
        langevin cite runs/digits
    """
    from langevin.ensembles.cite import cite as entry
    from langevin.storage import manifest as manifests
    from langevin.storage.directory import DirectoryStore

    name = what
    if manifests.exists(Path(what)):
        manifest = DirectoryStore.open(what).manifest
        recipe = manifest.get("method") or manifest.get("sampler")
        if not isinstance(recipe, dict) or not isinstance(recipe.get("name"), str):
            raise ValueError(f"{what} was sampled with a custom sampler: langevin has no citation for it.")
        name = recipe["name"]
    say(*entry(name).splitlines())

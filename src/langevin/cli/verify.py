"""`langevin verify`: is every file of a run what it was when it was written?"""

from __future__ import annotations

from typing import Annotated

import typer

from langevin.cli.options import RunPath
from langevin.cli.tables import say


def verify(
    path: RunPath,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Move corrupted sample files to RUN/quarantine; the rest is then usable."),
    ] = False,
    accept_manifest: Annotated[
        bool, typer.Option("--accept-manifest", help="Sign a manifest that you edited by hand, and answer for it.")
    ] = False,
) -> None:
    """Verify the checksum of every file of a run. The exit code is 1 if something is wrong.

    Examples:

    \b
        langevin verify runs/digits
        langevin verify runs/digits --quarantine
    """
    from langevin.storage import verify as files

    if accept_manifest:
        files.accept_manifest(path)
    found = files.verify(path)
    say(*found.problems)
    say(f"{found.files} files, {found.samples} intact samples, {len(found.problems)} problems.")
    if quarantine and found.corrupted:
        say(f"{len(found.corrupted)} corrupted files were moved to {files.quarantine(path, found)}.")
    if found.problems:
        raise typer.Exit(1)

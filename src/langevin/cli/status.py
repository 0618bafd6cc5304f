"""`langevin status`: how far a run is."""

from __future__ import annotations

from langevin.cli.options import RunPath
from langevin.cli.tables import say, show_table


def status(path: RunPath) -> None:
    """Show how far a run is.

    Steps, samples, temperature, speed and last heartbeat of each chain.

    Example:

    \b
        langevin status runs/digits

    It reads only, so it can be used while the run is sampled, from any machine that sees the directory.
    """
    from langevin.storage.status import describe

    title, (head, *rows), remarks = describe(path)
    say(title)
    show_table(head, rows)
    say(*remarks)

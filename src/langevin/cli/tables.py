"""What a command prints: with `rich` on a terminal, plain in a file or a pipe.

Text that comes from a run's files may have been written by anyone. A terminal obeys control characters, so all of them
are escaped here, and every command prints through this module.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence

import typer

_COLOURS = {
    "ok": "green",
    "good": "green",
    "warning": "yellow",
    "error": "bold red",
    "bad": "bold red",
}  # of the levels of findings and verdicts
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's controls, direction marks, surrogates and separators of lines


def printable(text: str) -> str:
    r"""The text with control characters escaped, line breaks included.

    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _OBEYED else c for c in text)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, escaped."""
    for line in lines:
        typer.echo(printable(line), err=err)


def is_terminal() -> bool:
    """Whether a person reads the output as it is printed."""
    return sys.stdout.isatty()


def show_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of numbers."""
    lines = [[printable(cell) for cell in row] for row in (head, *rows)]
    if is_terminal():
        _show_rich(lines[0], lines[1:], ["right"] * len(head))
        return
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def show_findings(findings: Iterable[tuple[str, str, str]]) -> None:
    """Print findings: a level, what it is about, and a sentence."""
    rows = [[printable(cell) for cell in finding] for finding in findings]
    if is_terminal():
        _show_rich(None, rows, ["right", "left", "left"])
        return
    for level, about, message in rows:
        typer.echo(f"{level:>7}  {about}: {message}")


def _show_rich(head: Sequence[str] | None, rows: Sequence[Sequence[str]], justify: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_header=head is not None, pad_edge=False)
    for index, side in enumerate(justify):
        table.add_column(Text(head[index] if head else ""), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:  # as Text: square brackets in a run's options are not markup
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)

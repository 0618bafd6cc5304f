"""What notebooks show of an object: a small table, without scripts and without styles of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(title: str, rows: Iterable[Sequence[Any]], columns: Sequence[str] = (), note: str = "") -> str:
    """A table with a title; the first cell of a row is its header. Everything is escaped."""
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join(
        f"<tr><th style='text-align: left'>{escape(str(row[0]))}</th>"
        + "".join(f"<td style='text-align: left'>{escape(str(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    start = f"<thead><tr>{head}</tr></thead>" if columns else ""
    end = f"<p>{escape(note)}</p>" if note else ""
    name = escape(title.strip("<>"))
    return f"<div><p><strong>{name}</strong></p><table>{start}<tbody>{body}</tbody></table>{end}</div>"


def facts(title: str, known: Mapping[str, Any], note: str = "") -> str:
    """Labels and values; those that are None are left out."""
    return table(title, [(label, value) for label, value in known.items() if value is not None], note=note)

"""A Griffe extension: the doctests of docstrings are code, which Markdown would take for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^[ ]*>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts doctests into fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every class, function and module that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every block of a doctest, up to the next empty line, in a fence."""
    return _DOCTEST.sub(lambda match: f"```pycon\n{match.group(0).rstrip()}\n```\n", text)

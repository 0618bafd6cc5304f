"""The parts of a report: verdicts, tables, figures, configuration."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from langevin.diagnostics.verdict import Finding
from langevin.storage import folders


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row is its header."""

    title: str
    caption: str
    columns: list[str]
    rows: list[list[str]]

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of the page: half of it has room for about 54 letters; headers wrap."""
        first = min(max(len(row[0]) for row in self.rows), 22) if self.rows else 0
        widths = [max(len(row[i]) for row in self.rows) + 3 for i in range(1, len(self.columns))] if self.rows else []
        return first + sum(widths) > 54

    @property
    def prose(self) -> list[bool]:
        """Of each column after the first, whether it has sentences, which wrap, rather than numbers."""
        return [any(len(row[i]) > 36 for row in self.rows) for i in range(1, len(self.columns))]

    def __str__(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        first, *rest = widths
        return "\n".join(
            "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], rest, strict=True))]).rstrip()
            for row in cells
        )


@dataclass(frozen=True)
class Picture:
    """A figure with a caption, and alternative text for screen readers."""

    title: str
    caption: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Report:
    """An evaluation: `save("report.html")` writes the page, `to_dict()` gives the numbers, `str` the verdicts."""

    title: str
    summary: str
    verdicts: list[Finding]
    tables: list[Table]
    pictures: list[Picture]
    configuration: dict[str, str]
    versions: dict[str, str]
    citations: list[str]
    numbers: dict[str, Any] = field(default_factory=dict)

    def html(self) -> str:
        """The page, as self-contained HTML."""
        from langevin.report.page import render

        return render(self)

    def save(self, path: str | Path) -> Path:
        """Write the page (.html), or the numbers (.json)."""
        path = Path(path)
        if path.suffix not in (".html", ".json"):
            raise ValueError(f"A report is saved as .html or .json; given {str(path)!r}. Write 'report.html'.")
        content = self.html() if path.suffix == ".html" else json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        folders.replace(path, (content + "\n").encode())
        return path

    def to_dict(self) -> dict[str, Any]:
        """Everything but the figures, JSON-serializable; unknown values are None."""
        return {
            "title": self.title,
            "summary": self.summary,
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
            "numbers": plain(self.numbers),
            "configuration": self.configuration,
            "versions": self.versions,
            "citations": self.citations,
        }

    def __str__(self) -> str:
        width = max(len(verdict.about) for verdict in self.verdicts)
        lines = [f"{v.level:>7}  {v.about:<{width}}  {v.message}" for v in self.verdicts]
        return "\n".join([f"{self.title}: {self.summary}", *lines, *(["", str(self.scores)] if self.tables else [])])

    @property
    def scores(self) -> Table:
        """The first table: the scores of the run and of its baselines."""
        return self.tables[0]

    def __repr__(self) -> str:
        levels: list[str] = [verdict.level for verdict in self.verdicts]
        counts = [f"{levels.count(level)} {level}" for level in dict.fromkeys(levels)]
        return f"<Report of {self.title}; {', '.join(counts)}; print(report), report.save('report.html')>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style and the notebook's stay apart."""
        return f'<iframe srcdoc="{escape(self.html())}" sandbox style="width: 100%; height: 45rem; border: 0"></iframe>'


def plain(value: Any) -> Any:
    """JSON-serializable numbers, strings, lists and dicts; non-finite numbers become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value

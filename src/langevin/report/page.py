"""The report as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from langevin._version import __version__
from langevin.report.contents import Report
from langevin.report.theme import DARK, LIGHT

SIGNS = {"good": "✓", "warning": "!", "bad": "✗", "unknown": "?"}


def render(report: Report) -> str:
    """The HTML; all text from the user is escaped."""
    import jinja2

    here = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=here, autoescape=True, undefined=jinja2.StrictUndefined)
    # CSS is not escaped: it contains only our own colours, no text from the user
    styles = jinja2.Environment(loader=here, autoescape=False, undefined=jinja2.StrictUndefined)
    css = styles.get_template("page.css").render(light=_variables(LIGHT), dark=_variables(DARK))
    levels: list[str] = [verdict.level for verdict in report.verdicts]
    return pages.get_template("page.html.j2").render(
        report=report,
        css=_ours(css),
        tally=[(level, levels.count(level)) for level in SIGNS],
        signs=SIGNS,
        spans=_spans([table.wide for table in report.tables]),
        version=__version__,
    )


def _spans(wide: list[bool]) -> list[bool]:
    """Which tables have the whole width: wide ones, and the last of an odd number of others: nothing is beside it."""
    spans, beside = list(wide), 0
    for index, own in enumerate(wide):
        beside = 0 if own else beside + 1
        if beside % 2 and (index + 1 == len(wide) or wide[index + 1]):
            spans[index] = True
    return spans


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _ours(text: str) -> str:
    from markupsafe import Markup

    return Markup(text)

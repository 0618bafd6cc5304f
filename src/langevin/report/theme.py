"""The colours of the page, light and dark, and matplotlib figures as inline SVG.

A figure is drawn once, in the colours of `langevin.plots.style`; in the page each colour is a CSS variable, so that
figures follow the reader's theme. Text in figures stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from langevin.plots import style

LIGHT = {
    "paper": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1d2733",
    "muted": "#545e69",
    "faint": "#d5dae0",
    "link": "#0a5a96",
    "good": "#11643b",
    "warning": "#855100",
    "bad": "#a8201a",
    "unknown": "#4b5563",
    "good-wash": "#e3f3ea",
    "warning-wash": "#fcf0dc",
    "bad-wash": "#fbe7e5",
    "unknown-wash": "#eceff2",
    **{f"series-{index}": colour for index, colour in enumerate(style.SERIES)},
}
DARK = {
    "paper": "#10141a",
    "card": "#181e26",
    "ink": "#e7ebf0",
    "muted": "#a5afba",
    "faint": "#38424e",
    "link": "#7cc0f5",
    "good": "#6fd6a0",
    "warning": "#f2bd62",
    "bad": "#ff9a90",
    "unknown": "#b4bec9",
    "good-wash": "#163325",
    "warning-wash": "#3a2c10",
    "bad-wash": "#421d1a",
    "unknown-wash": "#29313b",
    "series-0": "#84c4f7",
    "series-1": "#f0a04b",
    "series-2": "#2aa67c",
    "series-3": "#d48ac4",
}

_VARIABLES = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.FAINT: "faint",
    style.PAPER: "card",
    **{colour: f"series-{index}" for index, colour in enumerate(style.SERIES)},
}


def inline_svg(figure: Any, alt: str, prefix: str) -> str:
    """The figure as inline SVG with alternative text; ids start with the prefix, so that figures do not share any."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg).replace("url(#", f"url(#{prefix}-")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)  # it would style the whole page
    svg = re.sub(r"(font: [\d.]+px|font-family:) [^;\"]*", r"\1 var(--sans)", svg)  # new and old matplotlib
    svg = re.sub(r'width="([\d.]+)pt" height="([\d.]+)pt"', "", svg, count=1)
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(alt, quote=True)}" ', 1)

"""The style of figures: colours for colour-blind readers, sizes for phones.

Lines differ in dash and marker as well as in colour. The report replaces these colours by those of the reader's theme
(`langevin.report.theme`), so plots use no other colours.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = ("#0b6bb0", "#c24e00", "#00805d", "#a1468a")
INK, MUTED, FAINT, PAPER = "#1d2733", "#5b6570", "#d5dae0", "#ffffff"
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))
_MARKERS = ("o", "s", "^", "D")

SIZE = (4.0, 2.9)  # inches: 9-point text stays readable on a phone


def settings() -> Any:
    """matplotlib's rcParams for every figure (as Any: matplotlib types their names one by one)."""
    from cycler import cycler

    return {
        "font.size": 9,
        "text.parse_math": False,  # a dollar in a name is not math
        "axes.titlesize": 10,
        "axes.prop_cycle": cycler(color=SERIES) + cycler(linestyle=_DASHES) + cycler(marker=_MARKERS),
        "lines.markersize": 4,
        "lines.linewidth": 1.6,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "legend.facecolor": PAPER,
        "legend.edgecolor": FAINT,
        "legend.framealpha": 1.0,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.edgecolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
    }


def new_figure(size: tuple[float, float] = SIZE) -> Figure:
    """An empty figure, without a pyplot window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]  # what notebooks look for
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


@contextmanager
def drawing(axes: Axes | None, size: tuple[float, float] = SIZE) -> Iterator[Axes]:
    """The axes to draw on, in our style: those given, or new ones (`axes.figure.savefig(…)` writes them)."""
    import matplotlib

    with matplotlib.rc_context(settings()):
        if axes is None:
            axes = new_figure(size).subplots()
            axes._repr_png_ = axes.figure._repr_png_  # type: ignore[attr-defined,union-attr]
        yield axes


def series(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th series, for plots that do not use the property cycle; sixteen differ."""
    dash = index + index // len(SERIES)  # the fifth series has the colour of the first and the dash of the second
    return {"color": SERIES[index % len(SERIES)], "linestyle": _DASHES[dash % len(_DASHES)]}


def legend_above(axes: Axes) -> None:
    """A legend above the axes, where it hides nothing."""
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4, "borderaxespad": 0.2}
    axes.legend(frameon=False, handlelength=1.3, handletextpad=0.5, columnspacing=1.0, **place)


def need(count: int, what: str) -> None:
    """Refuse to draw nothing."""
    if count == 0:
        raise ValueError(f"There is no {what} to draw; give at least one.")

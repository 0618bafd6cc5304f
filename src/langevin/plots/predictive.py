"""Plots of predictions: arrays in, axes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from langevin.evaluation.calibration import Reliability
from langevin.evaluation.selective import RiskCoverage
from langevin.plots.style import FAINT, MUTED, drawing, legend_above, need, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from langevin.ensembles.prediction import ValuePrediction

_ROW = 6  # images per row
_MOST = 100  # intervals in a figure


def reliability(curves: Mapping[str, Reliability], axes: Axes | None = None) -> Axes:
    """Reliability diagram, one line per method: overconfident below the diagonal, underconfident above it."""
    need(len(curves), "curve")
    with drawing(axes) as axes:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="-", marker="", zorder=1)
        for index, (name, curve) in enumerate(curves.items()):
            axes.plot(curve.confidence, curve.accuracy, label=name, marker="os^D"[index % 4], **series(index))
        lowest = min(float(min(c.confidence.min(), c.accuracy.min())) for c in curves.values())
        axes.set(xlim=(lowest - 0.02, 1.01), ylim=(lowest - 0.02, 1.01), xlabel="confidence", ylabel="accuracy")
        axes.legend(loc="best")  # on the side of the diagonal where no curve is
    return axes


def coverage(curves: Mapping[str, tuple[Any, Any]], axes: Axes | None = None) -> Axes:
    """Interval coverage for regression: the share of targets inside intervals, against their nominal probability."""
    need(len(curves), "curve")
    with drawing(axes) as axes:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="-", marker="", zorder=1)
        for index, (name, (nominal, found)) in enumerate(curves.items()):
            axes.plot(nominal, found, label=name, marker="os^D"[index % 4], **series(index))
        axes.set(xlim=(0, 1.01), ylim=(0, 1.01), xlabel="nominal coverage", ylabel="targets inside")
        axes.legend(loc="best")  # on the side of the diagonal where no curve is
    return axes


def intervals(prediction: ValuePrediction, targets: Any, axes: Axes | None = None, *, probability: float = 0.9) -> Axes:
    """Prediction intervals against targets, by the predicted mean; at most 100 inputs, evenly spaced in that order."""
    mean = np.asarray(prediction.mean, dtype=float).reshape(len(prediction.mean), -1)[:, 0]
    need(len(mean), "prediction")
    truth = np.asarray(targets, dtype=float).reshape(len(mean), -1)[:, 0]
    low, high = (np.asarray(e, dtype=float).reshape(len(mean), -1)[:, 0] for e in prediction.interval(probability))
    order = np.argsort(mean, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(len(order), _MOST)).round().astype(int)]
    with drawing(axes) as axes:
        where = np.arange(1, len(order) + 1)
        style, inside = series(0), (low[order] <= truth[order]) & (truth[order] <= high[order])
        label = f"{probability:.0%} interval"
        axes.vlines(where, low[order], high[order], color=style["color"], alpha=0.45, linewidth=2.2, label=label)
        for chosen, marker, index, label in ((inside, "o", 2, "target inside"), (~inside, "s", 1, "outside")):
            options: Any = {"color": series(index)["color"], "linestyle": "", "markersize": 3, "label": label}
            axes.plot(where[chosen], truth[order][chosen], marker, **options)
        axes.set(xlabel="test inputs, by predicted mean", ylabel="target")
        legend_above(axes)
    return axes


def histograms(
    values: Mapping[str, Any],
    axes: Axes | None = None,
    *,
    label: str = "confidence (max probability)",
    limits: tuple[float, float] = (0.0, 1.0),
    bins: int = 20,
) -> Axes:
    """Histograms of one number per input, one for each data set or method, each normalized to its number of inputs."""
    need(len(values), "histogram")
    with drawing(axes) as axes:
        edges, highest = np.linspace(*limits, bins + 1), 0.0
        for index, (name, each) in enumerate(values.items()):
            counts, _ = np.histogram(np.clip(np.asarray(each, dtype=float), *limits), edges)
            style, shares = series(index), counts / counts.sum()
            axes.stairs(shares, edges, fill=True, color=style["color"], alpha=0.22)
            axes.stairs(shares, edges, linewidth=1.6, label=name, **style)
            highest = max(highest, float(shares.max()))
        room = 1.05 + 0.12 * len(values)  # for the legend
        axes.set(xlim=limits, ylim=(0, highest * room), xlabel=label, ylabel="share of inputs")
        axes.legend()
    return axes


def risk_coverage(curves: Mapping[str, RiskCoverage], axes: Axes | None = None) -> Axes:
    """Risk-coverage curve: the error rate of the most confident inputs, against the share that is answered."""
    need(len(curves), "curve")
    with drawing(axes) as axes:
        for index, (name, curve) in enumerate(curves.items()):
            axes.plot(curve.coverage, curve.risk, label=name, marker="", **series(index))
        axes.set(xlim=(0, 1), ylim=(0, None), xlabel="share of inputs answered", ylabel="error rate among them")
        axes.legend(loc="best")
    return axes


def ranked_images(
    images: Any, confidence: Any, captions: Sequence[str] | None = None, *, wrong: Any = None, count: int = 12
) -> Any:
    """Images from the most to the least confident, `count` of them evenly spaced, in rows of six; returns the figure.

    `images` is (n, height, width), (n, 1, height, width) or (n, 3, height, width), of any range. Misclassified images
    (`wrong`) have a thick frame.
    """
    import matplotlib

    from langevin.plots.style import SERIES, new_figure

    pixels = _as_pixels(images)
    confidence = np.asarray(confidence, dtype=float)
    if len(pixels) != len(confidence) or len(pixels) == 0 or count < 1:
        raise ValueError(
            f"{len(pixels)} images and {len(confidence)} confidences: give one for each image, and at least one."
        )
    count = min(count, len(pixels))
    order = np.argsort(-confidence, kind="stable")[np.linspace(0, len(pixels) - 1, count).round().astype(int)]
    rows = -(-count // _ROW)
    with matplotlib.rc_context(_image_settings()):
        figure = new_figure((4.0, 0.84 * rows))
        for place, axes in enumerate(figure.subplots(rows, _ROW, squeeze=False).flat):
            axes.set(xticks=[], yticks=[])
            if place >= count:
                axes.set_visible(False)
                continue
            index = order[place]
            axes.imshow(pixels[index], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xlabel(captions[index] if captions is not None else f"{confidence[index]:.2f}", labelpad=2)
            if wrong is not None and wrong[index]:
                for spine in axes.spines.values():
                    spine.set(edgecolor=SERIES[1], linewidth=2.5)
    return figure


def _image_settings() -> Any:
    from langevin.plots.style import settings

    frame = {"axes.spines.top": True, "axes.spines.right": True, "axes.edgecolor": FAINT, "axes.grid": False}
    return {**settings(), **frame, "axes.labelsize": 8.5, "axes.linewidth": 0.6}


def _as_pixels(images: Any) -> np.ndarray:
    """(n, height, width) or (n, height, width, 3), from 0 to 1 over all images."""
    pixels = np.asarray(images, dtype=float)
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        pixels = pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)
    elif pixels.ndim != 3:
        raise ValueError(f"Images have shape (n, height, width) or (n, 1 or 3, height, width); given {pixels.shape}.")
    low, high = pixels.min(initial=np.inf), pixels.max(initial=-np.inf)
    return (pixels - low) / (high - low) if high > low else np.zeros_like(pixels)

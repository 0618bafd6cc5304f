"""Plot of a learning-rate search."""

from __future__ import annotations

import math
from typing import Any

from langevin.inference.find_lr import RateSearch
from langevin.plots.style import drawing


def rate_search(search: RateSearch, axes: Any = None) -> Any:
    """Temperature against learning rate, with the tolerance band and the chosen rate."""
    target, tolerance, lr, trials = search.target_temperature, search.tolerance, search.lr, search.trials
    shown = [t for t in trials if math.isfinite(t.temperature.mean)]
    with drawing(axes) as drawn:
        _draw(drawn, trials, shown, lr, target, tolerance)
    return drawn


def _draw(axes: Any, trials: list[Any], shown: list[Any], lr: float, target: float, tolerance: float) -> None:
    axes.axhspan(target * (1 - tolerance), target * (1 + tolerance), color="0.9", zorder=0)
    for label, marker in (("temperature", "o-"), ("stiffest", "s--")):
        readings = [getattr(t, label) for t in shown]
        name = "all weights" if label == "temperature" else "stiffest direction"
        axes.errorbar(
            [t.lr for t in shown],
            [reading.mean for reading in readings],
            [reading.error if math.isfinite(reading.error) else 0.0 for reading in readings],
            fmt=marker,
            markersize=4,
            capsize=2,
            label=name,
        )
    for trial in trials:
        if not math.isfinite(trial.temperature.mean):
            axes.axvline(trial.lr, color="tab:red", linestyle=":", label="diverged")
    axes.axvline(lr, color="0.3", linewidth=1, label=f"chosen: {lr:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="virial temperature")
    axes.legend()

"""Pictures of the search for a learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def draw_rate_search(axes: Any, trials: Sequence[Any], lr: float, asked: float, tolerance: float) -> None:
    """Temperature against learning rate, with the band that is tolerated and the rate that was chosen."""
    shown = [t for t in trials if math.isfinite(t.temperature.mean)]
    axes.axhspan(asked * (1 - tolerance), asked * (1 + tolerance), color="0.9", zorder=0)
    axes.errorbar(
        [t.lr for t in shown],
        [t.temperature.mean for t in shown],
        [t.temperature.error for t in shown],
        fmt="o-",
        markersize=4,
        capsize=2,
    )
    for trial in trials:
        if not math.isfinite(trial.temperature.mean):
            axes.axvline(trial.lr, color="tab:red", linestyle=":", label="diverged")
    axes.axvline(lr, color="0.3", linewidth=1, label=f"chosen: {lr:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="configurational temperature")
    axes.legend()

"""Pictures of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from langevin.evaluation.scores import Reliability


def draw_reliability(axes: Any, curves: Mapping[str, Reliability]) -> None:
    """Accuracy against confidence, one line a method; on the diagonal confidence is honest."""
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, zorder=0)
    for name, curve in curves.items():
        axes.plot(curve.confidence, curve.accuracy, "o-", markersize=4, label=name)
    lowest = min(float(min(c.confidence.min(), c.accuracy.min())) for c in curves.values())
    axes.set(xlim=(lowest - 0.02, 1.01), ylim=(lowest - 0.02, 1.01), xlabel="confidence", ylabel="accuracy")
    axes.legend()


def draw_confidence(axes: Any, confidences: Mapping[str, Tensor]) -> None:
    """Histograms of the probability of the most probable class, one a method."""
    for name, values in confidences.items():
        axes.hist(values.tolist(), bins=20, range=(0, 1), alpha=0.6, label=name)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="inputs")
    axes.legend()

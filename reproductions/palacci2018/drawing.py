"""The figures, in the paper's layout: one colour per sampler, our variants dashed."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproductions.palacci2018.judging import at_best, best
from reproductions.palacci2018.training import VARIANTS
from reproductions.rows import Rows

_COLOURS = {"SGD": "black", "FSGD": "tab:orange", "SGLD": "tab:blue", "pSGLD": "tab:green", "KSGLD": "tab:red"}


def style(method: str) -> dict[str, Any]:
    """Colour, line and label of a variant."""
    return {
        "color": _COLOURS[method.split(",")[0]],
        "linestyle": "--" if VARIANTS[method].ours else "-",
        "linewidth": 1.2,
        "label": method,
    }


def mean_of(rows: Rows, name: str, method: str) -> Any:
    """The mean, over seeds, of a list of numbers."""
    return np.mean([row[name] for row in rows.where(method=method)], axis=0)


def draw_curves(panel: Any, rows: Rows) -> None:
    """Test accuracy of the running weights over epochs."""
    for method in rows.values("method"):
        panel.plot(mean_of(rows, "epochs", method), mean_of(rows, "curve", method), **style(method))
    panel.set(xlabel="epoch", ylabel="test accuracy")


def draw_all(figure: Any, rows: Rows) -> None:
    """Figures 1, 2 and 4, and table 1 as a curve over ε."""
    (accuracy, mixing), (attack, outside) = figure.subplots(2, 2)
    chosen = at_best(rows)
    draw_curves(accuracy, chosen)
    last = [mean_of(chosen, "curve", method)[-3:] for method in chosen.values("method")]
    inset = accuracy.inset_axes((0.45, 0.12, 0.52, 0.5))
    draw_curves(inset, chosen)
    inset.set(
        xlim=chosen[0]["epochs"][-3:][::2], ylim=(np.median(last) - 0.02, np.max(last) + 0.002), xlabel="", ylabel=""
    )
    inset.tick_params(labelsize=7)
    accuracy.set_title("Figure 1: test accuracy of the running weights")
    for method in chosen.values("method"):
        mixing.plot(mean_of(chosen, "draws", method), mean_of(chosen, "mess", method), **style(method))
        eps, after = mean_of(chosen, "attack", method).T
        attack.plot(eps, after, **style(method))
        histogram = mean_of(chosen, "histogram", method)
        outside.stairs(histogram, np.linspace(0, 1, len(histogram) + 1), **style(method))
    draws = mean_of(chosen, "draws", chosen[0]["method"])
    mixing.plot(draws, draws, ":", color="0.6", label="independent draws")
    mixing.set(xlabel="draws so far", ylabel="mESS", yscale="log", title="Figure 2: diagonal mESS of the draws so far")
    attack.axhline(0.1, color="0.7", linewidth=1, zorder=0)
    attack.set(xlabel="ε (pixels from 0 to 1)", ylabel="accuracy", title="Table 1: under FGSM; grey: chance")
    outside.set(xlabel="highest probability", ylabel="share of notMNIST", title="Figure 4: confidence on notMNIST")
    mixing.legend(fontsize=7)


def draw_small(figure: Any, rows: Rows) -> None:
    """Figure 3, and the test accuracy at the end."""
    left, right = figure.subplots(1, 2)
    chosen = at_best(rows)
    draw_curves(left, chosen)
    left.set(title="test accuracy of the running weights")
    left.legend(fontsize=7)
    methods = list(best(rows))
    found = [chosen.mean("accuracy", method=method) for method in methods]
    right.errorbar([f.mean for f in found], range(len(found)), xerr=[f.error for f in found], fmt="o")
    right.set_yticks(range(len(methods)), methods)
    right.invert_yaxis()
    right.set(xlabel="test accuracy", title="of the prediction")

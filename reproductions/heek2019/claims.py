"""The judges of the paper's claims about a table of methods, and its figures."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import Any

import torch

from langevin.evaluation.scores import Reliability
from langevin.plots import reliability
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.rows import BySeed, Rows, minus

Side = tuple[str, str]
"""A method, and which of its predictions: "single" (the last weights) or "predictive"."""
Contest = tuple[str, Side, Side]
"""A score, and the two sides that are compared: the first is claimed to be the better one."""
KINDS = {
    "single": "",
    "train": " on training images",
    "predictive": ", predictive",
    "best": " at its best moment",
    "first_half": ", first half",
}
DIGITS = {"accuracy": ".1%", "nll": ".3f", "calibration": ".3f", "overconfidence": "+.3f"}


def better(*contests: Contest) -> Judge:
    """Whether the first side has the better score than the second, in all contests."""
    return Judge(
        "; ".join(f"{score}, {_name(one)} less {_name(other)}" for score, one, other in contests)
        + " (accuracy: negative, so that less is better)",
        partial(_gaps, contests=contests),
        partial(_shown_gaps, contests=contests),
    )


def _scores(rows: Rows, score: str, side: Side) -> BySeed:
    """A score by seed; not judged where the method was not run, diverged, or saw synthetic images only."""
    method, kind = side
    here = rows.where(method=method)
    if not here:
        raise NotJudged(f"{method} was not run at this scale")
    if here[0]["data"] == "noise":
        raise NotJudged("synthetic images, which only show that it runs")
    for row in here:
        if row["diverged"]:
            raise NotJudged(f"{method} diverged at seed {row['seed']}: {row['diverged']}")
    return {row["seed"]: row[kind][score] for row in here}


def _gaps(rows: Rows, contests: tuple[Contest, ...]) -> Contrasts:
    found = {}
    for score, one, other in contests:
        gap = minus(_scores(rows, score, one), _scores(rows, score, other))
        sign = -1 if score == "accuracy" else 1
        found[f"{score}, {_name(one)} less {_name(other)}"] = {seed: sign * value for seed, value in gap.items()}
    return found


def _shown_gaps(rows: Rows, contests: tuple[Contest, ...]) -> str:
    parts = []
    for score, *sides in contests:
        ours, theirs = (format(fmean(_scores(rows, score, side).values()), DIGITS[score]) for side in sides)
        parts.append(f"{score} {_name(sides[0])} {ours}, {_name(sides[1])} {theirs}")
    return "; ".join(parts) + "."


def _samples_needed(rows: Rows) -> dict[int, tuple[int, int, bool]]:
    """By seed: samples in cycles, samples at a constant rate for as low an NLL, and whether it got there at all."""
    for method in ("ATMC", "ATMC, constant rate"):
        _scores(rows, "nll", (method, "predictive"))
    found = {}
    for row in rows.where(method="ATMC"):
        for partner in rows.where(method="ATMC, constant rate", seed=row["seed"]):
            looks = partner["by_all_looks"]
            reached = [n for n, loss in enumerate(looks, 1) if loss <= row["by_samples"][-1]]
            found[row["seed"]] = len(row["by_samples"]), reached[0] if reached else len(looks) + 1, bool(reached)
    return found


def _times_samples(rows: Rows) -> Contrasts:
    return {
        "log₂ of samples at a constant rate over samples in cycles": {
            seed: math.log2(constant / cycles) for seed, (cycles, constant, _) in _samples_needed(rows).items()
        }
    }


def _shown_samples(rows: Rows) -> str:
    parts = [
        f"as low an NLL as with {cycles} samples in cycles takes {'' if got_there else 'more than '}"
        f"{constant if got_there else constant - 1} at a constant rate"
        for cycles, constant, got_there in _samples_needed(rows).values()
    ]
    cyclic, constant = (
        fmean(_scores(rows, "nll", (method, "predictive")).values()) for method in ("ATMC", "ATMC, constant rate")
    )
    equally = f"With equally many samples NLL is {cyclic:.3f} in cycles, {constant:.3f} at a constant rate."
    return f"{'; '.join(parts)}. {equally}"


FEWER_SAMPLES = Judge(
    "log₂ of the number of samples at a constant rate that reach the NLL of all samples in cycles, over the number of "
    "those; never reached counts as one more than there are (many fewer: by half)",
    _times_samples,
    _shown_samples,
    "above",
    1.0,
)


def _overfitting(rows: Rows) -> Contrasts:
    whole, half = (_scores(rows, "nll", ("ATMC", kind)) for kind in ("predictive", "first_half"))
    end, least = (_scores(rows, "nll", ("SGD, longer", kind)) for kind in ("single", "best"))
    return {
        "ATMC, all samples less 0.01 and the first half": {seed: d - 0.01 for seed, d in minus(whole, half).items()},
        "SGD, its best moment less its end": minus(least, end),
    }


def _shown_overfitting(rows: Rows) -> str:
    ours, sgd = _overfitting(rows).values()
    return (
        f"from half of the samples to all the NLL of ATMC's predictive changes by {fmean(ours.values()) + 0.01:+.4f}; "
        f"SGD, trained as long, ends {-fmean(sgd.values()):+.3f} above its best moment."
    )


NO_OVERFITTING = Judge(
    "NLL of ATMC's predictive of all samples less that of the first half and 0.01, and SGD's least NLL on the way less "
    "that at its end (it tells something only if SGD overfits)",
    _overfitting,
    _shown_overfitting,
)


def draw_table(figure: Any, rows: Rows) -> None:
    """Reliability diagram, test loss against the number of samples, and against epochs."""
    left, middle, right = figure.subplots(1, 3)
    curves = {}
    for row in rows.where(seed=0, diverged=None):
        found = row["predictive" if "predictive" in row else "single"]
        if "constant" not in row["method"] and "longer" not in row["method"]:
            curves[row["method"]] = Reliability(*map(torch.tensor, found["bins"]))
        label = f"{row['method']}: {found['accuracy']:.1%}, {found['nll']:.3f}"
        (line,) = right.plot(row["epochs"], row["curve"], "-", linewidth=1, label=label)
        if "by_samples" in row:
            counts = range(1, 1 + len(row["by_samples"]))
            middle.plot(counts, row["by_samples"], "o-", markersize=3, color=line.get_color(), label=row["method"])
    reliability(curves, left)
    left.legend(fontsize=7)
    middle.set(xlabel="samples in the ensemble", ylabel="test NLL")
    right.set(xlabel="epochs", ylabel="test NLL of the running weights")
    middle.legend(fontsize=7)
    right.legend(fontsize=6, title="accuracy, NLL", title_fontsize=6)


def _name(side: Side) -> str:
    return side[0] + KINDS[side[1]]

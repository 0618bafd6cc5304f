"""The paper's claims about a table of methods, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from langevin.evaluation.scores import Reliability
from langevin.plots import reliability
from reproductions.harness import Rows, Verdict, clearly
from reproductions.heek2019.runs import compare

Judge = Callable[[Rows], Verdict]
Side = tuple[str, str]
"""A method, and which of its predictions: "single" (the last weights) or "predictive"."""
KINDS = {
    "single": "",
    "train": " on training images",
    "predictive": ", predictive",
    "best": " at its best moment",
    "first_half": ", first half",
}
DIGITS = {"accuracy": ".1%", "nll": ".3f", "calibration": ".3f", "overconfidence": "+.3f"}


def better(*contests: tuple[str, Side, Side]) -> Judge:
    """Whether the first side has the better score than the second in all contests, by two standard errors.

    No as soon as it is clearly the worse in one of them; can't tell if neither.
    """

    def judge(rows: Rows) -> Verdict:
        parts, answers = [], []
        for score, one, other in contests:
            if gone := _missing(rows, one, other):
                return gone
            gap = compare(rows, score, one, other)
            ours, theirs = (format(_mean(rows, score, side), DIGITS[score]) for side in (one, other))
            parts.append(
                f"{score} {_name(one)} {ours}, {_name(other)} {theirs} (difference {gap.mean:+.3f} ± {gap.error:.3f})"
            )
            sign = -1 if score == "accuracy" else 1
            answers.append(clearly(gap._replace(mean=sign * gap.mean)))
        verdict = False if any(a is False for a in answers) else True if all(answers) else None
        return Verdict("; ".join(parts) + ". (Better: by two standard errors.)", verdict)

    return judge


def needs_fewer_samples(rows: Rows) -> Verdict:
    """Cyclical against constant learning rate: with equally many samples, and with all looks of the latter."""
    one, other = ("ATMC", "predictive"), ("ATMC, constant rate", "predictive")
    if gone := _missing(rows, one, other):
        return gone
    cyclic, constant = rows.where(method=one[0])[0], rows.where(method=other[0])[0]
    reached = [n for n, loss in enumerate(constant["by_all_looks"], 1) if loss <= cyclic["by_samples"][-1]]
    count, most = len(cyclic["by_samples"]), len(constant["by_all_looks"])
    gap = compare(rows, "nll", one, other)
    return Verdict(
        f"with {count} samples NLL {cyclic['predictive']['nll']:.3f} in cycles, {constant['predictive']['nll']:.3f} at "
        f"a constant rate (difference {gap.mean:+.3f} ± {gap.error:.3f}); the constant rate gets as low "
        + (f"with {reached[0]} samples." if reached else f"with none of up to {most} samples.")
        + " (Fewer: better with equally many, by two standard errors.)",
        clearly(gap),
    )


def keeps_from_overfitting(rows: Rows) -> Verdict:
    """The ensemble's loss does not rise from the first half of its samples to all; SGD's rises from its minimum."""
    whole, half = ("ATMC", "predictive"), ("ATMC", "first_half")
    end, least = ("SGD, longer", "single"), ("SGD, longer", "best")
    if gone := _missing(rows, whole, half, end, least):
        return gone
    rise, sgd = compare(rows, "nll", whole, half), compare(rows, "nll", end, least)
    return Verdict(
        f"from half of the samples to all the NLL of ATMC's predictive changes by {rise.mean:+.4f} ± {rise.error:.4f}; "
        f"SGD, trained as long, ends {sgd.mean:+.3f} ± {sgd.error:.3f} above its best moment. (No overfitting: the "
        "first does not clearly rise; it tells something only if SGD's does.)",
        False if clearly(rise) is False else (True if clearly(sgd) is False else None),
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


def _missing(rows: Rows, *sides: Side) -> Verdict | None:
    """The verdict where a method was not run, diverged, or saw synthetic images only."""
    for method, _ in sides:
        here = rows.where(method=method)
        if not here:
            return Verdict(f"{method} was not run at this scale.", None)
        if here[0]["data"] == "noise":
            return Verdict("not measured: synthetic images, which only show that it runs.", None)
        if any(row["diverged"] for row in here):
            return Verdict(f"{method} diverged: {here[0]['diverged']}", None)
    return None


def _mean(rows: Rows, score: str, side: Side) -> float:
    here = rows.where(method=side[0])
    return float(sum(row[side[1]][score] for row in here) / len(here))


def _name(side: Side) -> str:
    return side[0] + KINDS[side[1]]

"""From the rows of a grid to the best setting of each variant, and to verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from langevin.core.statistics import Estimate
from reproductions.harness import Cell, Rows, clearly
from reproductions.palacci2018.training import VARIANTS

_POINT = ("method", "lr", "decay", "damping")


def best(rows: Rows) -> dict[str, Cell]:
    """The point of each grid with the best validation accuracy at seed 0, of those that diverged for no seed."""
    chosen = {}
    for method in VARIANTS:
        points = list({tuple(row[key] for key in _POINT): None for row in rows.where(method=method)})
        keys: list[Cell] = [dict(zip(_POINT, point, strict=True)) for point in points]
        whole = [key for key in keys if all(row["validation"] is not None for row in rows.where(**key))]
        if whole:
            chosen[method] = max(whole, key=lambda key: rows.mean("validation", seed=0, **key).mean)
    return chosen


def repeats(settings: Any, rows: Rows) -> list[Cell]:
    """The chosen points at the other seeds: the grid is searched with the first seed only."""
    return [{**key, "seed": seed} for seed in range(1, settings.seeds) for key in best(rows).values()]


def at_best(rows: Rows) -> Rows:
    """The rows of the chosen points: one for each variant and seed."""
    return Rows(row for key in best(rows).values() for row in rows.where(**key))


def percent(value: Estimate) -> str:
    """In per cent, with the standard error if it is known."""
    error = "" if math.isnan(value.error) else f" ± {100 * value.error:.2f}"
    return f"{100 * value.mean:.2f}{error} %"


def listed(chosen: Rows, name: str, methods: Sequence[str]) -> str:
    """A score of each variant, in per cent."""
    return ", ".join(
        f"{method} {percent(chosen.mean(name, method=method))}" if chosen.where(method=method) else f"{method} diverged"
        for method in methods
    )


def points(gap: Estimate | None) -> str:
    """A difference in percentage points."""
    if gap is None:
        return "unknown"
    return f"{100 * gap.mean:+.2f}" + ("" if math.isnan(gap.error) else f" ± {100 * gap.error:.2f}")


def difference(chosen: Rows, name: str, one: str, other: str) -> Estimate | None:
    """One variant minus another, paired by seed; None if one of them diverged at every point of its grid."""
    if not (chosen.where(method=one) and chosen.where(method=other)):
        return None
    return chosen.paired(name, {"method": one}, {"method": other})


def all_below(differences: Iterable[Estimate | None], limit: float = 0.0) -> bool | None:
    """True if every one is below the limit by two standard errors, False if one is above it by as much."""
    answers = [d and clearly(Estimate(d.mean - limit, d.error)) for d in differences]
    return False if any(answer is False for answer in answers) else True if all(answers) else None


def negative(value: Estimate | None) -> Estimate | None:
    """Its negative, to test whether it is above a limit."""
    return value and Estimate(-value.mean, value.error)

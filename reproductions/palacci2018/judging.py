"""From the rows of a grid to the best setting of each variant, and to verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from langevin.core.statistics import Estimate
from reproductions.judges import Contrasts, NotJudged
from reproductions.palacci2018.training import VARIANTS
from reproductions.rows import BySeed, Cell, Rows

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


def points(gap: BySeed) -> str:
    """The mean of differences in percentage points, with its standard error if it is known."""
    mean = Rows({"d": value} for value in gap.values()).mean("d")
    return f"{100 * mean.mean:+.2f}" + ("" if math.isnan(mean.error) else f" ± {100 * mean.error:.2f}")


def chosen_rows(rows: Rows, methods: Iterable[str]) -> Rows:
    """The rows of the chosen points; not judged if one of the methods diverged at every point of its grid."""
    chosen = at_best(rows)
    for method in methods:
        if not chosen.where(method=method):
            raise NotJudged(f"{method} diverged at every point of its grid")
    return chosen


def by_method(rows: Rows, name: str, methods: Sequence[str]) -> Contrasts:
    """A score of each method."""
    chosen = chosen_rows(rows, methods)
    return {method: chosen.by_seed(name, method=method) for method in methods}


def by_pair(rows: Rows, name: str, pairs: Sequence[tuple[str, str]]) -> Contrasts:
    """A score of one method less that of another, for each pair."""
    chosen = chosen_rows(rows, [method for pair in pairs for method in pair])
    return {f"{one} less {other}": chosen.difference(name, {"method": one}, {"method": other}) for one, other in pairs}

"""Rows of results, and numbers of them by seed."""

from __future__ import annotations

import math
import statistics
from typing import Any

from langevin.core.statistics import Estimate

Cell = dict[str, Any]
BySeed = dict[int, float]
"""A number for each seed."""


class Rows(list[Cell]):
    """Rows of results."""

    def where(self, **key: Any) -> Rows:
        """The rows with these settings."""
        return Rows(row for row in self if all(row.get(name) == value for name, value in key.items()))

    def values(self, name: str) -> list[Any]:
        """The different values of a setting, in the order of their first appearance."""
        return list(dict.fromkeys(row[name] for row in self))

    def mean(self, name: str, **key: Any) -> Estimate:
        """Mean of a number over the rows of these settings (the seeds), and its standard error: nan for one row."""
        numbers = [row[name] for row in self.where(**key)]
        if not numbers:
            raise KeyError(f"no row has {key}")
        error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
        return Estimate(statistics.fmean(numbers), error)

    def by_seed(self, name: str, **key: Any) -> BySeed:
        """A number of the rows of these settings, by seed."""
        return {row["seed"]: row[name] for row in self.where(**key)}

    def difference(self, name: str, one: Cell, other: Cell) -> BySeed:
        """One minus the other, for each seed that both have."""
        return minus(self.by_seed(name, **one), self.by_seed(name, **other))

    def log_ratio(self, name: str, one: Cell, other: Cell) -> BySeed:
        """log(one / other), for each seed that both have."""
        first, second = self.by_seed(name, **one), self.by_seed(name, **other)
        return {seed: math.log(first[seed] / second[seed]) for seed in first if seed in second}


def minus(one: BySeed, other: BySeed) -> BySeed:
    """The difference, for each seed that both have."""
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def cell_of(row: Cell) -> Cell:
    """The settings of a row."""
    return {key: row[key] for key in row["cell"]}

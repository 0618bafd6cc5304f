"""Whether burn-in is over: the windows (s/4, s/2] and (s/2, s] of s steps do not differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from langevin.core.statistics import mean_and_error

_LEVEL = 0.05  # of looks that find a change where there is none, by any of the quantities
_NEGLIGIBLE = 0.005  # nats per example, or standard deviations of a prediction


class Drift(NamedTuple):
    """The change of a quantity from one window to the next, over chains."""

    name: str
    change: float
    error: float
    negligible: float

    @property
    def settled(self) -> bool:
        """Whether the change is within its error or negligible."""
        return abs(self.change) <= max(2 * self.error, self.negligible)

    def __str__(self) -> str:
        error = f"± {self.error:.1g}" if self.error else "(unknown error)"
        return f"{self.name} changes by {self.change:+.2g} {error}"


def drifts(series: Mapping[int, Sequence[Sequence[float]]], steps: int) -> list[Drift]:
    """Changes of the watched log-likelihood and of predictions; rows are (step, log-likelihood, predictions…)."""
    windows = {chain: _windows(np.asarray(rows, dtype=np.float64), steps) for chain, rows in series.items()}
    if not windows or any(len(a) < 2 or len(b) < 2 for a, b in windows.values()):
        return [Drift("nothing", math.inf, 0.0, 0.0)]
    columns = next(iter(windows.values()))[0].shape[1]
    found = []
    for column in range(1, columns):
        before = [a[:, column] for a, _ in windows.values()]
        after = [b[:, column] for _, b in windows.values()]
        spread = 1.0 if column == 1 else math.sqrt(float(np.mean([np.var(b) for b in after]))) or 1.0
        name = "the log-likelihood" if column == 1 else f"prediction {column - 1}"
        negligible = _NEGLIGIBLE * (1 if column == 1 else 20) * spread
        found.append(Drift(name, *_change(before, after, _LEVEL / (columns - 1)), negligible))
    return found


def _windows(rows: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    at = rows[:, 0]
    return rows[(at > steps / 4) & (at <= steps / 2)], rows[(at > steps / 2) & (at <= steps)]


def _change(before: list[np.ndarray], after: list[np.ndarray], level: float) -> tuple[float, float]:
    """With three chains or more paired over chains, else from the errors within windows."""
    each = np.array([b.mean() - a.mean() for a, b in zip(before, after, strict=True)])
    if len(each) >= 3:
        from scipy.special import stdtrit

        widening = float(stdtrit(len(each) - 1, 1 - level / 2)) / 2
        return float(each.mean()), widening * float(each.std(ddof=1)) / math.sqrt(len(each))
    errors = [mean_and_error(*(row.tolist() for row in rows)).error for rows in (before, after)]
    error = math.hypot(*errors)
    return float(each.mean()), error if math.isfinite(error) else 0.0

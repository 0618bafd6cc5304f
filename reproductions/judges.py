"""How a claim is judged: Student's t over seeds, one function for all claims, by a judge that is fixed before the run.

A judge states what is compared, in which direction, the smallest effect that counts and the number of seeds. It turns
rows into contrasts, each a number for every seed (a difference that is paired by seed, where two methods share seeds).
The claim is that the mean of *every* contrast lies on one side of a limit, and with level α = 5 %

- yes:  every contrast is on that side by a one-sided t-test at α/2. (Together they need no correction: the claim is
  false if one of them is not there, and that one's test errs in at most α/2 of runs.)
- no:   one of the k contrasts is on the other side by a one-sided t-test at α/2k (Bonferroni).
- can't tell:  neither.

So a claim that is neither true nor false by the limit (every contrast at it) is answered in at most 5 % of runs. With
fewer seeds than the judge wants there is no answer at all.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from reproductions.rows import BySeed, Rows

LEVEL = 0.05
FEWEST = 3
"""Seeds of which a contrast must have a value: some may lack one that has many (a matrix that can't be inverted)."""
Direction = Literal["below", "above", "within", "outside"]
Contrasts = Mapping[str, BySeed]


class NotJudged(Exception):
    """Raised by a judge's `contrasts` if the rows can't tell, with what is missing."""


class Verdict(NamedTuple):
    """What was measured; `reproduced` is None where it can't be told, `missing` says why it was not judged."""

    measured: str
    reproduced: bool | None
    why: str = ""
    missing: str = ""

    @property
    def answer(self) -> str:
        """As on the pages."""
        if self.missing:
            return f"not judged: {self.missing}"
        return {True: "yes", False: "**no**", None: "can't tell"}[self.reproduced]


@dataclass(frozen=True)
class Judge:
    """A judge of one claim: data, and a function from rows to contrasts. Everything but `shows` is in its digest.

    Args:
        compares: what the contrasts are, in words.
        contrasts: from rows to a number for each seed, by name; a function of a module, or a `partial` of one. It
            raises `NotJudged` if the rows can't tell.
        shows: from rows to the sentence on the page.
        direction: the side of the limit on which the paper's claim puts every contrast; "within" is between −limit and
            +limit, "outside" that one of them is not.
        limit: the smallest effect that counts.
        seeds: as many as are judged, no more (later ones would let one look first) and no fewer.
        resolution: the step of values from a grid; equal ones still have the spread of rounding to it.
    """

    compares: str
    contrasts: Callable[[Rows], Contrasts]
    shows: Callable[[Rows], str]
    direction: Direction = "below"
    limit: float = 0.0
    seeds: int = 3
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if self.seeds < FEWEST:
            raise ValueError(f"seeds={self.seeds}: a judge wants at least {FEWEST}.")
        if self.direction in ("within", "outside") and self.limit <= 0:
            raise ValueError(f"direction={self.direction!r} needs limit > 0; given {self.limit}.")

    def __call__(self, rows: Rows) -> Verdict:
        """The verdict of these rows."""
        seeds = sorted(rows.values("seed"))
        rows = Rows(row for row in rows if row["seed"] in seeds[: self.seeds])
        if not rows:
            return Verdict("nothing yet.", None, missing=f"0 of {self.seeds} seeds")
        try:
            found = self.contrasts(rows)
        except NotJudged as reason:
            return Verdict("nothing that could be compared.", None, missing=str(reason))
        text = self.shows(rows)
        if len(seeds) < self.seeds:
            return Verdict(text, None, missing=f"{len(seeds)} of {self.seeds} seeds")
        for name, values in found.items():
            if len(values) < FEWEST:
                return Verdict(text, None, missing=f"{name} has {len(values)} of {self.seeds} seeds")
        numbers = [list(contrast.values()) for contrast in found.values()]
        answer = decide(numbers, self.direction, self.limit, self.resolution)
        return Verdict(f"{text} {self._deciding(found)}", answer)

    def _deciding(self, found: Contrasts) -> str:
        """The contrast that is furthest on the wrong side, with its interval."""
        name = max(found, key=lambda name: self._badness(list(found[name].values())))
        values = list(found[name].values())
        low, high = interval(values, self.resolution)
        which = f"{name}: " if len(found) == 1 else f"Of {len(found)} contrasts the least favourable, {name}: "
        return f"{which}{statistics.fmean(values):+.3g} (95 % interval {low:+.3g} to {high:+.3g})."

    def _badness(self, values: list[float]) -> float:
        sides = _sides(values, self.direction, self.limit)
        return max(p_below(side, self.resolution) for side in sides)

    @property
    def rule(self) -> str:
        """In words: what the claim is taken to say."""
        side = {
            "below": f"below {self.limit:g}",
            "above": f"above {self.limit:g}",
            "within": f"within ±{self.limit:.3g}",
            "outside": f"not all within ±{self.limit:.3g}",
        }[self.direction]
        return f"{self.compares}: {side}; {self.seeds} seeds."

    @cached_property
    def definition(self) -> dict[str, Any]:
        """All that the verdict depends on, JSON-serializable."""
        return {
            "compares": self.compares,
            "direction": self.direction,
            "limit": self.limit,
            "seeds": self.seeds,
            "resolution": self.resolution,
            "level": LEVEL,
            "contrasts": _described(self.contrasts),
        }

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the definition's SHA-256."""
        return digest_of(self.definition)


def digest_of(definition: dict[str, Any]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the definition's JSON."""
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]


def decide(
    contrasts: Sequence[Sequence[float]], direction: Direction = "below", limit: float = 0.0, resolution: float = 0.0
) -> bool | None:
    """Whether the means of all contrasts (each a number per seed) are on that side of the limit; None: can't tell.

    >>> decide([[-1.0, -1.1, -0.9]])
    True
    >>> decide([[-1.0, -0.2, -0.5]]) is None  # 2.5 standard errors; with three seeds 4.3 are needed
    True
    """
    if direction == "outside":
        answer = decide(contrasts, "within", limit, resolution)
        return None if answer is None else not answer
    below = [p_below(side, resolution) for values in contrasts for side in _sides(values, direction, limit)]
    if all(p <= LEVEL / 2 for p in below):
        return True
    return False if any(1 - p <= LEVEL / 2 / len(contrasts) for p in below) else None


def _sides(values: Sequence[float], direction: Direction, limit: float) -> list[list[float]]:
    """The numbers whose means must be below 0: one list or, for an interval, two."""
    below, above = [value - limit for value in values], [limit - value for value in values]
    return {
        "below": [below],
        "above": [above],
        "within": [below, [-value - limit for value in values]],
        "outside": [below, [-value - limit for value in values]],
    }[direction]


def p_below(values: Sequence[float], resolution: float = 0.0) -> float:
    """p-value of the t-test that the mean is below 0: NaN (never significant) for one value."""
    if len(values) < 2:
        return math.nan
    from scipy.special import stdtr

    mean, error = statistics.fmean(values), _error(values, resolution)
    if error == 0:  # the same number for every seed
        return 0.5 if mean == 0 else float(mean > 0)
    return float(stdtr(len(values) - 1, mean / error))


def interval(values: Sequence[float], resolution: float = 0.0) -> tuple[float, float]:
    """The t-interval of the mean at 95 %; infinite for one value."""
    if len(values) < 2:
        return -math.inf, math.inf
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, 1 - LEVEL / 2))
    mean, half = statistics.fmean(values), quantile * _error(values, resolution)
    return mean - half, mean + half


def _error(values: Sequence[float], resolution: float) -> float:
    return max(statistics.stdev(values), resolution / math.sqrt(12)) / math.sqrt(len(values))


def _described(function: Any) -> Any:
    """A function by its source, without white space; a `partial` by its function and its arguments."""
    if isinstance(function, partial):
        return {
            "function": _described(function.func),
            "args": json.loads(json.dumps(function.args)),
            "keywords": json.loads(json.dumps(function.keywords)),
        }
    return "".join(inspect.getsource(function).split())

"""`compare`: the scores of several runs on the same test data, with paired bootstrap intervals of the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """A value and the bootstrap interval about it."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference is not explained by the choice of test examples."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Comparison:
    """A table: `scores[name][metric]`, and `differences[name][metric]` to the first run, on the same resamples.

    The intervals are about the choice of test examples; of another seed of the sampler they know nothing.
    """

    scores: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Interval]]  # name − first; the first has none
    metrics: list[str]
    examples: int
    level: float
    resamples: int

    def markdown(self) -> str:
        """The table in Markdown: scores, beneath them the differences to the first with their intervals."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, as JSON takes them."""
        raise NotImplementedError

    def __str__(self) -> str:
        raise NotImplementedError


def compare(
    runs: Mapping[str, Any],
    test: Any,
    *,
    metrics: Sequence[str] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    batch_size: int = 1024,
) -> Comparison:
    """Compare runs (or predictions, or class probabilities) on test data (x, y); differences are to the first.

    Metrics: "accuracy", "nll", "brier", "calibration error" for classes; "rmse", "nll", "crps" for values.
    """
    raise NotImplementedError

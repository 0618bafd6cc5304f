"""`compare`: scores of several runs on the same test data, with paired bootstrap intervals of the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from langevin.core import html
from langevin.core.arguments import COUNT, FRACTION, NATURAL, SEED, validated
from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.evaluation import scores
from langevin.evaluation.bootstrap import percentile_intervals
from langevin.evaluation.checks import checked
from langevin.evaluation.inputs import examples, full_prediction_of

Statistic = Callable[[np.ndarray], np.ndarray]  # from indices of examples (…, n) to the score of each resample (…)


class Interval(NamedTuple):
    """A value and its bootstrap interval; NaN for one test example."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True)
class Comparison:
    """A table: `scores[name][metric]`, and `differences[name][metric]` from the first run, on the same resamples.

    The intervals account for the choice of test examples, not for variation between seeds. Those of the calibration
    error are biased upward: a resample has fewer distinct examples.
    """

    scores: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Interval]]  # name − first, without the first
    metrics: list[str]
    examples: int
    level: float
    resamples: int

    def markdown(self) -> str:
        """The table in Markdown: scores, then differences from the first run with their intervals."""
        return "\n".join(
            "| " + " | ".join(row) + " |" for row in (self._cells()[0], ["---"] * self._width(), *self._cells()[1:])
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-serializable dicts, lists and numbers."""

        def plain(table: dict[str, dict[str, Interval]]) -> dict[str, Any]:
            return {name: {metric: i._asdict() for metric, i in row.items()} for name, row in table.items()}

        return {
            "metrics": self.metrics,
            "examples": self.examples,
            "level": self.level,
            "resamples": self.resamples,
            "scores": plain(self.scores),
            "differences": plain(self.differences),
        }

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(self._width())]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        note = f"{self.examples} examples; differences with {self.level:.0%} paired bootstrap intervals"
        return "\n".join([*lines, note])

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.scores)} on {self.examples:,} examples: {', '.join(self.metrics)}>"

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        note = f"Differences with {self.level:.0%} paired bootstrap intervals."
        return html.table(repr(self), rows, head, note)

    def _width(self) -> int:
        return len(self.metrics) + 1

    def _cells(self) -> list[list[str]]:
        first = next(iter(self.scores))
        rows = [["", *self.metrics]]
        rows += [[name, *(f"{row[m].value:.4f}" for m in self.metrics)] for name, row in self.scores.items()]
        rows += [[f"{name} − {first}", *(str(row[m]) for m in self.metrics)] for name, row in self.differences.items()]
        return rows


@validated(resamples=NATURAL, level=FRACTION, seed=SEED, batch_size=COUNT)
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
    """Compare runs (or predictions, or class probabilities) on test data (x, y); differences are from the first.

    Metrics: "accuracy", "nll", "brier", "calibration error" for classification; "rmse", "nll", "crps" for regression.
    The bootstrap is paired: all runs are scored on the same resamples of the test examples.
    """
    if not isinstance(runs, Mapping):
        raise ValueError(
            f'Name what is compared: lv.compare({{"SGD": a, "ATMC": b}}, test); given {type(runs).__name__}.'
        )
    if not runs:
        raise ValueError('There are no runs to compare. Write lv.compare({"SGD": a, "ATMC": b}, test).')
    if resamples < 2 or not 0 < level < 1:
        raise ValueError(
            f"resamples={resamples}, level={level}: give resamples of 2 or more and a level between 0 and 1."
        )
    x, y = examples(test)
    predictions = {name: full_prediction_of(run, x, batch_size=batch_size) for name, run in runs.items()}
    _check_alike(predictions, len(y))
    statistics = {name: _statistics(prediction, y) for name, prediction in predictions.items()}
    known = list(next(iter(statistics.values())))
    metrics = known if metrics is None else list(metrics)
    if unknown := [metric for metric in metrics if metric not in known]:
        raise ValueError(f"metrics={unknown}: choose from {known}.")

    def scores_and_differences(chosen: np.ndarray) -> np.ndarray:
        values = np.array([[statistics[name][metric](chosen) for metric in metrics] for name in runs])
        return np.concatenate([values, values[1:] - values[:1]])  # (2 runs − 1, metrics, …)

    low, high = percentile_intervals(scores_and_differences, len(y), resamples=resamples, level=level, seed=seed)
    whole = scores_and_differences(np.arange(len(y)))
    rows = [
        {metric: Interval(float(v), float(a), float(b)) for metric, v, a, b in zip(metrics, *row, strict=True)}
        for row in zip(whole, low, high, strict=True)
    ]
    return Comparison(
        scores=dict(zip(runs, rows[: len(runs)], strict=True)),
        differences=dict(zip(list(runs)[1:], rows[len(runs) :], strict=True)),
        metrics=metrics,
        examples=len(y),
        level=level,
        resamples=resamples,
    )


def _statistics(prediction: Prediction, y: Tensor) -> dict[str, Statistic]:
    if isinstance(prediction, ValuePrediction):
        squared = _mean(scores.squared_error_each(prediction.mean, y))
        return {
            "rmse": lambda chosen: np.sqrt(squared(chosen)),
            "nll": _mean(scores.value_negative_log_likelihood_each(prediction, y)),
            "crps": _mean(scores.crps_each(prediction, y)),
        }
    return {
        "accuracy": _mean(scores.accuracy_each(prediction.probs, y)),
        "nll": _mean(scores.negative_log_likelihood_each(prediction.probs, y)),
        "brier": _mean(scores.brier_each(prediction.probs, y)),
        "calibration error": _calibration(prediction.probs, y),
    }


def _mean(each: Tensor) -> Statistic:
    values = each.cpu().numpy()
    return lambda chosen: np.asarray(values[chosen].mean(-1))


def _calibration(probs: Tensor, y: Tensor, bins: int = 8) -> Statistic:
    """`scores.calibration_error` of resamples. Sorting integer ranks is faster than sorting confidences and labels."""
    probs, labels = checked(probs, y)
    confidence, predicted = probs.max(1)
    order = confidence.argsort(stable=True)
    rank = order.argsort().cpu().numpy()
    excess = (confidence - (predicted == labels).double())[order].cpu().numpy()
    starts = [part[0] for part in np.array_split(np.arange(len(excess)), min(bins, len(excess)))]

    def statistic(chosen: np.ndarray) -> np.ndarray:
        values = excess[np.sort(rank[chosen], axis=-1)]
        return np.asarray(np.abs(np.add.reduceat(values, starts, axis=-1)).sum(-1) / len(excess))

    return statistic


def _check_alike(predictions: Mapping[str, Prediction], count: int) -> None:
    """Refuse predictions of different tasks, or not of every test example."""
    for name, prediction in predictions.items():
        rows = len(prediction.probs if isinstance(prediction, ClassPrediction) else prediction.mean)
        if rows != count:
            raise ValueError(f"{name!r} has predictions for {rows} examples; the test data have {count}.")
    kinds = {name: _kind(prediction) for name, prediction in predictions.items()}
    if len(set(kinds.values())) > 1:
        found = "; ".join(f"{name!r}: {kind}" for name, kind in kinds.items())
        raise ValueError(
            f"The runs do not predict the same quantity ({found}), so they can't be compared on one test set. Compare "
            f"runs of the same task, with the same labels."
        )


def _kind(prediction: Prediction) -> str:
    if isinstance(prediction, ClassPrediction):
        return f"{prediction.probs.shape[1]} classes"
    return f"values of shape {tuple(prediction.mean.shape[1:])}"

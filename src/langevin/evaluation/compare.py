"""`compare`: the scores of several runs on the same test data, with paired bootstrap intervals of the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.evaluation import scores
from langevin.evaluation.checks import checked
from langevin.evaluation.inputs import examples, full_prediction_of

Statistic = Callable[[np.ndarray | None], float]  # from the indices of a resample (None: all examples) to the score


class Interval(NamedTuple):
    """A value and the bootstrap interval about it."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference is not explained by the choice of test examples."""
        return not self.low <= 0 <= self.high

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True)
class Comparison:
    """A table: `scores[name][metric]`, and `differences[name][metric]` to the first run, on the same resamples.

    The intervals are about the choice of test examples; of another seed of the sampler they know nothing. Those of
    the calibration error err upward, as that score does on fewer distinct examples.
    """

    scores: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Interval]]  # name − first; the first has none
    metrics: list[str]
    examples: int
    level: float
    resamples: int

    def markdown(self) -> str:
        """The table in Markdown: scores, beneath them the differences to the first with their intervals."""
        return "\n".join(
            "| " + " | ".join(row) + " |" for row in (self._cells()[0], ["---"] * self._width(), *self._cells()[1:])
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, as JSON takes them."""

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

    def _width(self) -> int:
        return len(self.metrics) + 1

    def _cells(self) -> list[list[str]]:
        first = next(iter(self.scores))
        rows = [["", *self.metrics]]
        rows += [[name, *(f"{row[m].value:.4f}" for m in self.metrics)] for name, row in self.scores.items()]
        rows += [[f"{name} − {first}", *(str(row[m]) for m in self.metrics)] for name, row in self.differences.items()]
        return rows


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

    Metrics: "accuracy", "nll", "brier", "calibration error" for classes; "rmse", "nll", "crps" for values. Each
    resample draws test examples with replacement, the same for all runs, so that what is hard for all cancels.
    """
    if not runs:
        raise ValueError('There is nothing to compare. Write lv.compare({"SGD": a, "ATMC": b}, test).')
    if resamples < 2 or not 0 < level < 1:
        raise ValueError(f"resamples={resamples}, level={level}: give 2 or more, and a level between 0 and 1.")
    x, y = examples(test)
    predictions = {name: full_prediction_of(run, x, batch_size=batch_size) for name, run in runs.items()}
    _check_alike(predictions, len(y))
    statistics = {name: _statistics(prediction, y) for name, prediction in predictions.items()}
    known = list(next(iter(statistics.values())))
    metrics = known if metrics is None else list(metrics)
    if unknown := [metric for metric in metrics if metric not in known]:
        raise ValueError(f"metrics={unknown}: choose of {known}.")

    rng = np.random.default_rng(seed)
    drawn = {name: {metric: np.empty(resamples) for metric in metrics} for name in runs}
    for i in range(resamples):
        chosen = rng.integers(len(y), size=len(y))
        for name in runs:
            for metric in metrics:
                drawn[name][metric][i] = statistics[name][metric](chosen)
    whole = {name: {metric: statistics[name][metric](None) for metric in metrics} for name in runs}
    first, *others = runs
    return Comparison(
        scores={n: {m: _interval(whole[n][m], drawn[n][m], level) for m in metrics} for n in runs},
        differences={
            n: {m: _interval(whole[n][m] - whole[first][m], drawn[n][m] - drawn[first][m], level) for m in metrics}
            for n in others
        },
        metrics=metrics,
        examples=len(y),
        level=level,
        resamples=resamples,
    )


def _interval(value: float, drawn: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _statistics(prediction: Prediction, y: Tensor) -> dict[str, Statistic]:
    if isinstance(prediction, ValuePrediction):
        squared = _mean(scores.squared_error_each(prediction.mean, y))
        return {
            "rmse": lambda chosen: squared(chosen) ** 0.5,
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
    return lambda chosen: float((values if chosen is None else values[chosen]).mean())


def _calibration(probs: Tensor, y: Tensor, bins: int = 8) -> Statistic:
    """`scores.calibration_error` of a resample; confidences are sorted once, a resample of them by their ranks."""
    probs, labels = checked(probs, y)
    confidence, predicted = probs.max(1)
    order = confidence.argsort(stable=True)
    rank = order.argsort().cpu().numpy()
    excess = (confidence - (predicted == labels).double())[order].cpu().numpy()
    edges = np.array_split(np.arange(len(excess)), min(bins, len(excess)))
    starts = [piece[0] for piece in edges]

    def statistic(chosen: np.ndarray | None) -> float:
        values = excess if chosen is None else excess[np.sort(rank[chosen])]
        return float(np.abs(np.add.reduceat(values, starts)).sum() / len(values))

    return statistic


def _check_alike(predictions: Mapping[str, Prediction], count: int) -> None:
    """All predict the same kind of thing, of the same classes, for every test example."""
    for name, prediction in predictions.items():
        rows = len(prediction.probs if isinstance(prediction, ClassPrediction) else prediction.mean)
        if rows != count:
            raise ValueError(f"{name!r} has predictions for {rows} examples; the test data have {count}.")
    kinds = {name: _kind(prediction) for name, prediction in predictions.items()}
    if len(set(kinds.values())) > 1:
        told = "; ".join(f"{name!r}: {kind}" for name, kind in kinds.items())
        raise ValueError(
            f"The runs do not predict the same thing ({told}), so they can't be compared on one test set. Compare runs "
            f"of the same task, with labels numbered alike."
        )


def _kind(prediction: Prediction) -> str:
    if isinstance(prediction, ClassPrediction):
        return f"{prediction.probs.shape[1]} classes"
    return f"values of shape {tuple(prediction.mean.shape[1:])}"

"""Overfitting curves: training and test scores against the number of training examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.evaluation.inputs import class_prediction_of, examples
from langevin.evaluation.scores import accuracy, negative_log_likelihood


@dataclass(frozen=True)
class CurvePoint:
    """Scores after training on `size` examples; the gap between test and training NLL measures overfitting."""

    size: int
    train_nll: float
    test_nll: float
    train_accuracy: float
    test_accuracy: float

    @property
    def gap(self) -> float:
        """test NLL − training NLL."""
        return self.test_nll - self.train_nll


def overfitting_curve(
    make: Callable[[Any, Tensor], Any], train: Any, test: Any, sizes: Sequence[int], *, seed: int = 0
) -> list[CurvePoint]:
    """`make(x, y)` returns a run, or any predictor, for these examples; the subsets are nested, drawn by `seed`."""
    (x, y), (test_x, test_y) = examples(train), examples(test)
    if not sizes or min(sizes) < 1 or max(sizes) > len(y):
        raise ValueError(f"sizes={list(sizes)}: give numbers of training examples from 1 to {len(y)}.")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed), device="cpu")
    points = []
    for size in sizes:
        subset_x, subset_y = tree_map(lambda t, chosen=order[:size]: t[chosen], (x, y))
        run = make(subset_x, subset_y)
        on_train, on_test = class_prediction_of(run, subset_x).probs, class_prediction_of(run, test_x).probs
        points.append(
            CurvePoint(
                size=size,
                train_nll=negative_log_likelihood(on_train, subset_y),
                test_nll=negative_log_likelihood(on_test, test_y),
                train_accuracy=accuracy(on_train, subset_y),
                test_accuracy=accuracy(on_test, test_y),
            )
        )
    return points

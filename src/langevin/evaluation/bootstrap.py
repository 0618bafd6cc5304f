"""The bootstrap over a test set: how far a score would move if other test data had been drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from langevin.core.statistics import Estimate


def replicates(
    score: Callable[[Tensor, Tensor], float], probs: Tensor, labels: Tensor, number: int = 100, seed: int = 0
) -> list[float]:
    """A score of class probabilities (n, classes) on resamples of the n examples, drawn with replacement.

    The same n and seed draw the same examples, so the replicates of two methods are paired.
    """
    if number < 2:
        raise ValueError(f"number={number}: a bootstrap takes two replicates or more, for example number=100.")
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(labels), (number, len(labels)), generator=generator).to(labels.device)
    return [score(probs[row], labels[row]) for row in rows]


def difference(one: float, other: float, of_one: Sequence[float], of_other: Sequence[float]) -> Estimate:
    """One score less the other, with the bootstrap error of the difference, from the paired replicates of both."""
    if len(of_one) != len(of_other):
        raise ValueError(
            f"{len(of_one)} replicates of one score and {len(of_other)} of the other can't be paired; draw as many of "
            f"both, with the same seed."
        )
    spread = statistics.stdev(a - b for a, b in zip(of_one, of_other, strict=True)) if len(of_one) > 1 else math.nan
    return Estimate(one - other, spread)

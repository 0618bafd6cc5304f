"""Bootstrap over test examples: how much a score varies with the choice of test data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from langevin.core.statistics import Estimate

_BATCH = 1 << 22  # indices of resampled examples in memory at once


def percentile_intervals(
    statistic: Callable[[np.ndarray], np.ndarray], examples: int, *, resamples: int, level: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of percentile intervals, in the shape of one value of the statistic.

    `statistic` maps indices of examples (…, n) to values (values…, …). All values are computed on the same resamples,
    so the interval of a difference is paired. One example has no interval: NaN.
    """
    from scipy.stats import bootstrap

    if examples < 2:
        unknown = np.full(np.shape(statistic(np.arange(examples))), np.nan)
        return unknown, unknown
    interval = bootstrap(
        (np.arange(examples),),
        lambda chosen, axis: statistic(chosen),
        n_resamples=resamples,
        batch=max(1, _BATCH // examples),
        vectorized=True,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return np.asarray(interval.low), np.asarray(interval.high)


def replicates(
    score: Callable[[Tensor, Tensor], float], probs: Tensor, labels: Tensor, number: int = 100, seed: int = 0
) -> list[float]:
    """Bootstrap replicates of a score of class probabilities (n, classes).

    The same n and seed draw the same examples, so the replicates of two methods are paired.
    """
    if number < 2:
        raise ValueError(f"number={number}: a bootstrap needs at least two replicates, for example number=100.")
    # Not scipy.stats.bootstrap: its resamples would not be paired with the replicates in experiments/*/results.json.
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(labels), (number, len(labels)), generator=generator, device="cpu").to(labels.device)
    return [score(probs[row], labels[row]) for row in rows]


def difference(one: float, other: float, of_one: Sequence[float], of_other: Sequence[float]) -> Estimate:
    """The difference one − other with its bootstrap standard error, from paired replicates."""
    if len(of_one) != len(of_other):
        raise ValueError(
            f"{len(of_one)} replicates of one score and {len(of_other)} of the other can't be paired; draw the same "
            f"number of both, with the same seed."
        )
    spread = statistics.stdev(a - b for a, b in zip(of_one, of_other, strict=True)) if len(of_one) > 1 else math.nan
    return Estimate(one - other, spread)

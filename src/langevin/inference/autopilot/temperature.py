"""`temperature="auto"`: the largest temperature that predicts about as well as the best, on data held out.

Averaging over chains widens a prediction, so a temperature belongs to the prediction of all chains together: of each
temperature of the ladder all chains are sampled for a while, and their mixture is judged by its log density of the
held-out part. The rule: the largest T within one paired standard error of the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.inference.autopilot.evaluate import Evaluation
from langevin.storage.base import SampleStore

LADDER = (1.0, 0.3, 0.1, 0.03)
TRIED = 32  # samples of each chain at each temperature of the ladder
_TOGETHER = 64


class Rung(NamedTuple):
    """A temperature, the negative log density of the held-out part, and how much better the best is."""

    temperature: float
    loss: float
    behind: float
    error: float  # paired, of `behind`


def steps_tried(burn_in: int) -> int:
    """Steps of each chain after a burn-in, by which its temperature is judged."""
    return max(TRIED, burn_in // 2)


def shown(rungs: Sequence[Rung]) -> str:
    """The loss by temperature."""
    return ", ".join(f"{rung.temperature:g}: {rung.loss:.4f}" for rung in rungs)


def choose_temperature(densities: Mapping[float, Tensor]) -> tuple[float, list[Rung]]:
    """The choice and what it is by, from the log densities of the same examples at each temperature."""
    best = max(densities.values(), key=lambda each: float(each.double().mean()))
    rungs = []
    for temperature, each in sorted(densities.items(), reverse=True):
        difference = (best - each).double()
        error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
        rungs.append(Rung(temperature, -float(each.double().mean()), float(difference.mean()), error))
    return next(rung.temperature for rung in rungs if rung.behind <= rung.error), rungs


def mixture_density(store: SampleStore, evaluation: Evaluation) -> Tensor:
    """log p(y|x) of each example under the mixture of all samples in a store."""
    records = store.records()
    total: Tensor | None = None
    for first in range(0, len(records), _TOGETHER):
        rows = [store.read(record) for record in records[first : first + _TOGETHER]]
        _, log_probs = evaluation({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
        part = log_probs.double().logsumexp(0)
        total = part if total is None else torch.logaddexp(total, part)
    assert total is not None
    return total - math.log(len(records))

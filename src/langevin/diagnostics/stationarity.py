"""Did a trace settle? A comparison of its beginning with its end, with errors that know of autocorrelation.

A trace is cut into 12 batches of equal length; the mean of the first 3 is compared with that of the last 6 (Geweke
1992) by a t-test with 5 degrees of freedom: the error comes from the last 6 alone, since a transient among the first
would hide itself in it. The batches' means have to be about independent: where the values are correlated over more
than half a batch, slow mixing can't be told from a drift, and the answer is unknown: run longer. Many traces are
tested at once, so p-values are Holm's: the chance of any false alarm is about `level` at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from langevin.core.statistics import effective_sample_size

_BATCHES, _EARLY, _LATE = 12, 3, 6


@dataclass(frozen=True)
class Stationarity:
    """One trace of one chain: z = (early − late)/error; `p_value` is Holm-adjusted for all traces tested together."""

    trace: str
    chain: int
    early: float
    late: float
    z: float
    p_value: float  # nan if unknown
    stationary: bool | None  # None if unknown
    why: str = ""  # why it is unknown


def stationarity(traces: Mapping[str, Mapping[int, Sequence[float]]], *, level: float = 0.05) -> list[Stationarity]:
    """Compare the first quarter of every trace (name → chain → values) with its last half, all at one `level`."""
    found = [_tested(name, chain, values) for name, chains in traces.items() for chain, values in chains.items()]
    known = sorted((i for i, test in enumerate(found) if math.isfinite(test.p_value)), key=lambda i: found[i].p_value)
    adjusted = 0.0
    for rank, i in enumerate(known):
        adjusted = max(adjusted, min(1.0, (len(known) - rank) * found[i].p_value))
        found[i] = replace(found[i], p_value=adjusted, stationary=adjusted >= level)
    return found


def _tested(name: str, chain: int, values: Sequence[float]) -> Stationarity:
    from scipy.stats import t as student

    series = np.asarray(values, dtype=float)
    series = series[np.isfinite(series)]
    length = len(series) // _BATCHES

    def unknown(why: str) -> Stationarity:
        return Stationarity(name, chain, math.nan, math.nan, math.nan, math.nan, None, why)

    if length < 2:
        return unknown(f"{len(series)} values; {2 * _BATCHES} are the least")
    means = series[len(series) - _BATCHES * length :].reshape(_BATCHES, length).mean(1)
    early, late = means[:_EARLY], means[-_LATE:]
    if series.min() == series.max():
        return Stationarity(name, chain, float(early[0]), float(late[0]), 0.0, 1.0, True)
    time = autocorrelation_time(series[len(series) - _LATE * length :])
    if 2 * time > length:
        return unknown(
            f"values are correlated over about {time:.0f} of the {len(series)}: a drift can't be told from slow "
            f"mixing; run longer"
        )
    error = float(late.std(ddof=1)) * math.sqrt(1 / _EARLY + 1 / _LATE)
    score = float(early.mean() - late.mean()) / error
    p_value = float(2 * student.sf(abs(score), _LATE - 1))
    return Stationarity(name, chain, float(early.mean()), float(late.mean()), score, p_value, None)


def autocorrelation_time(series: np.ndarray) -> float:
    """n/ess: over how many values a trace is correlated; infinite for a constant."""
    ess = float(effective_sample_size(torch.from_numpy(np.ascontiguousarray(series, dtype=np.float64))))
    return len(series) / ess if ess > 0 else math.inf

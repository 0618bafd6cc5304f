"""Stationarity of a trace: a comparison of its early and late means with autocorrelation-adjusted standard errors.

A trace is cut into 12 batches of equal length. The mean of the first 3 is compared with that of the last 6 (Geweke
1992) by a t-test with 5 degrees of freedom; the standard error comes from the last 6 alone, since a transient in the
first ones would inflate it. Batch means have to be about independent: if values are correlated over more than half a
batch, slow mixing can't be distinguished from a drift, and the result is unknown. Many traces are tested at once, so
p-values are Holm-adjusted: the family-wise error rate is about `level` at most. (ArviZ has no such test.)
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
    """The test of one trace of one chain: z = (early − late)/error; `p_value` is Holm-adjusted over all traces."""

    trace: str
    chain: int
    early: float
    late: float
    z: float
    p_value: float  # NaN if unknown
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
        return unknown(f"{len(series)} values; at least {2 * _BATCHES} are needed")
    means = series[len(series) - _BATCHES * length :].reshape(_BATCHES, length).mean(1)
    early, late = means[:_EARLY], means[-_LATE:]
    if series.min() == series.max():
        return Stationarity(name, chain, float(early[0]), float(late[0]), 0.0, 1.0, True)
    time = autocorrelation_time(series[len(series) - _LATE * length :])
    if 2 * time > length:
        return unknown(
            f"the autocorrelation time is about {time:.0f} of {len(series)} values, so a drift can't be distinguished "
            f"from slow mixing; run longer"
        )
    error = float(late.std(ddof=1)) * math.sqrt(1 / _EARLY + 1 / _LATE)
    score = float(early.mean() - late.mean()) / error
    p_value = float(2 * student.sf(abs(score), _LATE - 1))
    return Stationarity(name, chain, float(early.mean()), float(late.mean()), score, p_value, None)


def autocorrelation_time(series: np.ndarray) -> float:
    """n/ESS; infinite for a constant."""
    ess = float(effective_sample_size(torch.from_numpy(np.ascontiguousarray(series, dtype=np.float64))))
    return len(series) / ess if ess > 0 else math.inf

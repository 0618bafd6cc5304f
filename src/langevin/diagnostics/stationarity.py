"""Stationarity of a trace: its first quarter is compared with its last half.

The variance of the difference of their means comes from the autocorrelations of the last halves alone, since a
transient in the beginning would inflate it, pooled over chains. An F-test over the chains (a t-test, if there is one)
finds a drift of all of them and of a single one. With ten chains or more, the spread of the differences between chains
is used instead, which is right for any autocorrelation. If the last halves are shorter than some ten autocorrelation
times, a drift can't be distinguished from slow mixing, and the result is unknown. Several traces are tested at once,
so p-values are Holm-adjusted: the family-wise error rate is about `level`. (ArviZ has no such test; Geweke's, 1992, is
the model.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from langevin.core.statistics import MANY_CHAINS, RECORD_LENGTH, long_run_variance

_FEWEST = 24  # values of a chain


@dataclass(frozen=True)
class Stationarity:
    """The test of one trace; early and late means, and z = (early − late)/error, are of the chain that drifts most."""

    trace: str
    chain: int
    early: float
    late: float
    z: float
    p_value: float  # Holm-adjusted over all traces; NaN if unknown
    stationary: bool | None  # None if unknown
    why: str = ""  # why it is unknown


def watched(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The traces of a run that are tested.

    Without a burn-in, as in the last stage of the autopilot, virial temperatures are about the first weights of the
    record: they rise from 0 while these are forgotten, which is no drift of the chain.
    """
    anchored = ("temperature",) if settings.get("burn_in", 0) > 0 else ()
    return ("loss", *anchored, "kinetic", "thermostat")


def stationarity(traces: Mapping[str, Mapping[int, Sequence[float]]], *, level: float = 0.05) -> list[Stationarity]:
    """Compare the first quarter of every trace (name → chain → values) with its last half, all at one `level`."""
    found = [_tested(name, chains) for name, chains in traces.items() if chains]
    known = sorted((i for i, test in enumerate(found) if math.isfinite(test.p_value)), key=lambda i: found[i].p_value)
    adjusted = 0.0
    for rank, i in enumerate(known):
        adjusted = max(adjusted, min(1.0, (len(known) - rank) * found[i].p_value))
        found[i] = replace(found[i], p_value=adjusted, stationary=adjusted >= level)
    return found


def _tested(name: str, chains: Mapping[int, Sequence[float]]) -> Stationarity:
    from scipy.special import fdtrc, stdtr

    series = {chain: np.asarray(values, dtype=np.float64) for chain, values in chains.items()}
    series = {chain: values[np.isfinite(values)] for chain, values in series.items()}
    fewest = min(map(len, series.values()))
    if fewest < _FEWEST:
        return _unknown(name, series, f"{fewest} values; at least {_FEWEST} are needed")
    early = np.array([values[: len(values) // 4].mean() for values in series.values()])
    last_halves = [values[-(len(values) // 2) :] for values in series.values()]
    late = np.array([half.mean() for half in last_halves])
    drift = early - late
    worst = int(np.argmax(np.abs(drift)))
    if not drift.any() and all(values.min() == values.max() for values in series.values()):
        return Stationarity(name, next(iter(series)), float(early[0]), float(late[0]), 0.0, 1.0, True)
    count = len(series)
    if count >= MANY_CHAINS:
        score = float(drift.mean() / max(math.sqrt(drift.var(ddof=1) / count), math.ulp(0.0)))
        p_value = float(2 * stdtr(count - 1, -abs(score)))
    else:
        long_run = long_run_variance(last_halves)
        if long_run is None:
            return _unknown(
                name,
                series,
                f"the last half, {len(last_halves[0])} values, is shorter than {RECORD_LENGTH} autocorrelation times, "
                f"so a drift can't be distinguished from slow mixing; run longer",
            )
        lengths = [(len(values) // 4, len(values) // 2) for values in series.values()]
        scores = drift / np.sqrt(long_run.variance * np.array([1 / first + 1 / last for first, last in lengths]))
        worst = int(np.argmax(np.abs(scores)))
        score = float(scores[worst])
        p_value = float(fdtrc(count, long_run.freedom, (scores**2).mean()))
    return Stationarity(name, list(series)[worst], float(early[worst]), float(late[worst]), score, p_value, None)


def _unknown(name: str, series: Mapping[int, np.ndarray], why: str) -> Stationarity:
    return Stationarity(name, next(iter(series)), math.nan, math.nan, math.nan, math.nan, None, why)

"""Did a trace settle? A comparison of its beginning with its end, with errors that know of autocorrelation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


def stationarity(
    traces: Mapping[str, Mapping[int, Sequence[float]]], *, early: float = 0.25, late: float = 0.5, level: float = 0.05
) -> list[Stationarity]:
    """Compare the first quarter of every trace with its last half (Geweke 1992), all tests together at `level`."""
    raise NotImplementedError

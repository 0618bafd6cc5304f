"""Timing by comparison: contenders take turns, step by step, so that other load on the machine affects all of them.

A round is a few steps of each contender in turn, A B C A B C …; a round's ratio is a contender's time in it over the
baseline's. Reported are the median over the rounds and the quartiles, of wall-clock time and of processor time
(`time.process_time`), which does not count the time that other programs take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Step = Callable[[], Any]


@dataclass(frozen=True)
class Comparison:
    """How a contender's time compares with the baseline's, over rounds."""

    ratio: float  # the median
    low: float  # the quartiles
    high: float
    processor: float  # the median ratio of processor times
    seconds: float  # a step of the contender, the median over rounds
    baseline: float  # a step of the baseline
    rounds: int

    def as_dict(self) -> dict[str, float | int]:
        """Rounded, for a file."""
        rounded = {name: float(f"{getattr(self, name):.4g}") for name in ("ratio", "low", "high", "processor")}
        times = {name: float(f"{getattr(self, name):.4g}") for name in ("seconds", "baseline")}
        return {**rounded, **times, "rounds": self.rounds}


def compare(
    steps: Mapping[str, Step],
    baseline: str,
    *,
    seconds: float,
    steps_per_round: int = 5,
    warm_up: int = 3,
    least: int = 5,
) -> dict[str, Comparison]:
    """Let all take turns for about `seconds`, and for `least` rounds or more."""
    for step in steps.values():
        for _ in range(warm_up):
            step()
    clock: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        spent = {name: [0.0, 0.0] for name in steps}
        for _ in range(steps_per_round):
            for name, step in steps.items():
                before, before_cpu = time.perf_counter(), time.process_time()
                step()
                spent[name][0] += time.perf_counter() - before
                spent[name][1] += time.process_time() - before_cpu
        for name in steps:
            clock[name].append(spent[name][0] / steps_per_round)
            processor[name].append(spent[name][1] / steps_per_round)
        rounds += 1
    return {name: _compared(clock, processor, name, baseline) for name in steps if name != baseline}


def _compared(clock: dict[str, list[float]], processor: dict[str, list[float]], name: str, baseline: str) -> Comparison:
    ratios = np.asarray(clock[name]) / np.asarray(clock[baseline])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return Comparison(
        ratio=float(middle),
        low=float(low),
        high=float(high),
        processor=float(np.median(np.asarray(processor[name]) / np.asarray(processor[baseline]))),
        seconds=float(np.median(clock[name])),
        baseline=float(np.median(clock[baseline])),
        rounds=len(ratios),
    )


def median_time(step: Step, *, seconds: float, least: int = 5) -> float:
    """The median time of a call in seconds, over about `seconds` of calls after a warm-up call."""
    step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    return float(np.median(times))

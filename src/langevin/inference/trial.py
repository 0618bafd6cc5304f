"""A short trial: whether chains are faster vectorised or one after another, and whether it pays to compile them.

What it decides goes into the manifest, so that a resumed run does the same.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from langevin.core.devices import synchronize
from langevin.core.progress import tqdm
from langevin.inference import traced
from langevin.inference.chains import Chains, Weights
from langevin.inference.one_chain import OneChain
from langevin.inference.stacked_chains import StackedChains
from langevin.samplers import Sampler

if TYPE_CHECKING:
    from langevin.inference.engine import Engine

_CLEARLY, _MORE_CLEARLY = 0.8, 0.5  # of the time: a busy machine disturbs a trial, and recorded chains become faster
_FEW, _MOST_TIMED, _SHORT = 20, 100, 0.1  # steps, before any is recorded, and seconds
_WORTH_COMPILING = 120.0  # seconds that a run would take, above which it pays to try


class Choice(NamedTuple):
    """How chains are computed, and why."""

    mode: str  # "vectorised" or "sequential"
    compiled: bool
    why: str


def choose(engine: Engine, mode: str, starts: Sequence[Weights], compile: bool | None) -> Choice:
    """The choice for an engine; vectorised chains that were built are kept there.

    `compile=None`: vectorised chains are compiled if the run is long enough to pay for it, and if it is faster.
    """
    if mode not in ("auto", "vectorised", "sequential"):
        raise ValueError(f'mode={mode!r}: choose "auto", "vectorised" or "sequential".')
    chains = engine.settings.chains
    if chains == 1 or mode == "sequential":
        return Choice("sequential", bool(compile), "")
    try:
        if isinstance(engine.probe, Sampler) and not engine.probe.stackable:
            raise ValueError(f"{type(engine.probe).__name__} looks at whole layers.")
        stacked = engine.build(range(chains), starts[:chains], StackedChains)
        together = seconds_per_step(stacked)
        stacked.reset(starts[:chains])
    except (RuntimeError, ValueError) as error:
        if mode == "vectorised":
            raise ValueError(f'mode="vectorised" is not possible: {error} Write mode="sequential".') from error
        return Choice("sequential", bool(compile), str(error).splitlines()[0])
    if mode == "auto":
        apart = seconds_per_step(engine.build([0], starts[:1], OneChain)) * chains
        why = f"a step of all chains takes {together:.1g} s vectorised and {apart:.1g} s one after another"
        recorded = isinstance(stacked, StackedChains) and stacked.will_be_recorded
        if apart <= (_MORE_CLEARLY if recorded else _CLEARLY) * together:
            return Choice("sequential", bool(compile), why)
    else:
        why = "as requested"
    compiled = _compiled(engine, starts[:chains], together) if compile is None else None
    if compiled is not None:
        stacked, faster = compiled
        why += f"; compiled it takes {faster:.1g} s"
    engine.keep(stacked)
    return Choice("vectorised", compiled is not None or bool(compile), why)


def _compiled(engine: Engine, starts: Sequence[Weights], together: float) -> tuple[Chains, float] | None:
    """Compiled chains and the time of their step, if the run is long, a compiler exists and they are faster."""
    settings = engine.settings
    if together * settings.steps < _WORTH_COMPILING or settings.autocast is not None:
        return None
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return None
    try:
        compiling = replace(engine, settings=replace(settings, compile=True), _built={})
        chains = compiling.build(range(settings.chains), starts, StackedChains)
        faster = seconds_per_step(chains)
    except Exception as error:  # whatever stops a compiler, the run goes on without it
        tqdm.write(f"Not compiled: {str(error).splitlines()[0]}", sys.stderr)
        return None
    chains.reset(starts)
    return (chains, faster) if faster < 0.95 * together else None


def seconds_per_step(group: Chains) -> float:
    """The time of a step that nothing disturbs: the lower quartile of a few, of more if they are short."""
    times = _first_times(group)
    times += _times(group, min(_FEW, traced.FIRST - 8, int(_SHORT / statistics.median(times))))
    return sorted(times)[len(times) // 4]


def lasting_pace(group: Chains, seconds: float) -> tuple[float, float]:
    """The time of a step in a long run, and how much more all the first ones take; timed for about so many seconds.

    The first steps of stacked chains are slower, until a recording of them is made, which takes time too; if time is
    short, not even a recording is made.
    """
    first = _mean_time(group, seconds)
    if seconds < _SHORT or not (isinstance(group, StackedChains) and group.will_be_recorded):
        return first, 0.0
    group.step = traced.FIRST - 1
    times = _times(group, 2)
    recording = times[-1] if times else first
    later = _mean_time(group, seconds)
    return later, max(0.0, traced.FIRST * (first - later) + recording - later)


def _mean_time(group: Chains, seconds: float) -> float:
    """The mean, so that a busy machine is timed as it is."""
    times = _first_times(group)
    times += _times(group, min(_MOST_TIMED, int(seconds / statistics.median(times))))
    return statistics.fmean(times)


def _first_times(group: Chains) -> list[float]:
    """Of five steps, after two that are slower."""
    times = _times(group, 7)
    return times[2:] or times or [1.0]


def _times(group: Chains, steps: int) -> list[float]:
    """Of so many steps; of fewer if the chains diverge, which the run itself will say."""
    times = []
    with suppress(FloatingPointError):
        for _ in range(steps):
            start = time.perf_counter()
            group.backward(whole=False)
            group.advance()
            synchronize(group.params[0].device)
            times.append(time.perf_counter() - start)
    return times

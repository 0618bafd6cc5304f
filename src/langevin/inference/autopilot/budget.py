"""What a run by autopilot may spend, and how a time becomes numbers of steps.

The clock is asked once, before the first stage: how long a step of the warm start, of the sampler, and of a single
chain takes. These go into the plan, hence into the manifest; all that follows is arithmetic with them and with counts,
so a resumed run decides the same.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from langevin.core.batches import as_batches
from langevin.core.full_batches import make_batches
from langevin.core.posterior import Posterior
from langevin.inference import traced
from langevin.inference.autopilot import stages
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.evaluate import Evaluation, stack
from langevin.inference.autopilot.plan import Plan
from langevin.inference.autopilot.temperature import LADDER
from langevin.inference.autopilot.warm_start import adamw, default_batch_size
from langevin.inference.chains import Weights
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of
from langevin.inference.starts import starting_weights
from langevin.inference.steppers import OptimizerFactory, sampler_factory
from langevin.inference.trial import lasting_pace
from langevin.samplers import SAMPLERS

FEWEST_STEPS = 400  # of each chain, for burn-in and samples
RATE_STEPS = 1000  # at each rate that is tried, if time allows
_FEWEST_RATE_STEPS = 100
_FEWEST_WARM = 100  # steps of the first phase
_RATES = 8  # that are tried, usually
_RATE_GRADIENTS = 1.8  # steps that one at a rate takes as long as: some are for readings
_WARM_SHARE, _RATE_SHARE = 1 / 3, 0.2
_SECOND_PHASE = 1.5  # the warm start has a second phase of half the first, at most
_RESERVE = 0.93  # the rest is for readings, files and the verdict
_LOOKS, _LOOKS_IN_BURN_IN = 400, 130  # at all chains: in the warm start and in sampling; in a burn-in
_TIMED = 0.01  # of the time, for each kind of step


@dataclass(frozen=True)
class Pace:
    """Seconds of a step: of the warm start and of the sampler, all chains, and of the sampler with one chain.

    `first` are those that the first steps of a stage take more, together (`lasting_pace`).
    """

    warm: float
    sampling: float
    alone: float
    warm_first: float = 0.0
    sampling_first: float = 0.0
    look: float = 0.0  # at the watched examples, with the weights of all chains
    spent: float = 0.0  # before the first stage

    def least(self, chains: float, rates: int) -> float:
        """Seconds that this share of the chains, and this number of searches for a rate, take at least."""
        warm = _SECOND_PHASE * _FEWEST_WARM * (self.warm + self.warm_first / traced.FIRST)
        steps = FEWEST_STEPS * (self.sampling + self.sampling_first / traced.FIRST)
        search = rates * _RATES * _FEWEST_RATE_STEPS * _RATE_GRADIENTS * self.alone
        return (chains * (warm + steps) + search) / _RESERVE + self.spent

    def of(self, share: float) -> Pace:
        """With this share of the chains."""
        names = ("warm", "sampling", "warm_first", "sampling_first", "look")
        return replace(self, **{name: share * getattr(self, name) for name in names})


@dataclass(frozen=True)
class Budget:
    """How much may be spent: seconds of everything; or, after the warm start, a multiple of it or steps of a chain."""

    seconds: float | None = None
    times: float | None = None
    steps: int | None = None

    @classmethod
    def parse(cls, given: str | float | None) -> Budget:
        """From "10 min", "90 s", "2 h", "2x" (times the warm start), "5000 steps", or a number of seconds.

        >>> Budget.parse("10 min"), Budget.parse("2x").times
        (Budget(seconds=600.0, times=None, steps=None), 2.0)
        """
        if given is None:
            return cls()
        text = f"{given} s" if isinstance(given, int | float) and not isinstance(given, bool) else given
        match = re.fullmatch(r"\s*([0-9.]+)\s*(s|sec|seconds?|min|minutes?|h|hours?|x|steps)\s*", str(text))
        try:
            value = float(match.group(1)) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not 0 < value < math.inf:
            raise ValueError(
                f'budget={given!r}: write a time, "10 min", "90 s", "2 h", a multiple of what the warm start takes, '
                f'"5x", or steps of each chain, burn-in included, "5000 steps".'
            )
        unit = match.group(2)
        if unit == "x":
            return cls(times=value)
        if unit == "steps":
            return cls(steps=max(1, int(value)))
        return cls(seconds=value * {"s": 1, "m": 60, "h": 3600}[unit[0]])


def within_time(posterior: Posterior, data: Any, plan: Plan, *, chains_given: bool, since: float | None = None) -> Plan:
    """A plan that keeps a time: with the pace of this machine, and fewer chains if all would take too long.

    `since`: when the time began, by `time.perf_counter()`.
    """
    if plan.seconds is None:
        return plan
    pace = measured_pace(posterior, data, plan)
    pace = pace if since is None else replace(pace, spent=time.perf_counter() - since)
    rates = searches(plan)
    chains = plan.chains
    while not chains_given and chains > 1 and pace.least(chains / plan.chains, rates) > plan.seconds:
        chains -= 1
    share = chains / plan.chains
    least = pace.least(share, rates)
    if least > plan.seconds:
        raise ValueError(
            f"The budget, {_in_words(plan.seconds)}, is too short for this model: warm start, burn-in and samples of "
            f"{chains} chain{'s' if chains > 1 else ''} take about {_in_words(1.1 * least)} at least. Give "
            f'budget="{_in_words(1.1 * least)}"{", or fewer chains" if chains > 1 else ""}, or sample fewer weights: '
            f"lv.last_layer(model), or lv.Posterior(…, sampled=…)."
        )
    if chains < plan.chains:
        why = f"{plan.why}; {plan.chains} chains would take {_in_words(pace.least(1, rates))} at least"
        plan = replace(plan, chains=chains, why=why)
        pace = pace.of(share)
    return replace(plan, pace=asdict(pace))


def searches(plan: Plan) -> int:
    """How often a learning rate has to be found."""
    if "lr" in plan.options or SAMPLERS.named(plan.sampler).full_batch:
        return 0
    return len(LADDER) if plan.temperature == "auto" else 1


def rate_steps(plan: Plan) -> int:
    """Steps at each rate that is tried."""
    if plan.seconds is None or plan.pace is None or searches(plan) == 0:
        return RATE_STEPS
    affordable = _RATE_SHARE * plan.seconds / (searches(plan) * _RATES * _RATE_GRADIENTS * plan.pace["alone"])
    return int(min(max(affordable, _FEWEST_RATE_STEPS), RATE_STEPS))


def warm_steps(plan: Plan) -> int | None:
    """The most steps that the first phase of the warm start may take, if time limits it."""
    if plan.seconds is None or plan.pace is None:
        return None
    return max(_FEWEST_WARM, int(_WARM_SHARE * plan.seconds / (_SECOND_PHASE * plan.pace["warm"])))


def steps_left(plan: Plan, warm: int, at_rates: int) -> int:
    """Steps of each chain for burn-in and sampling, after so many of the warm start and at rates."""
    assert plan.seconds is not None
    assert plan.pace is not None
    pace = Pace(**plan.pace)
    spent = pace.spent + warm * pace.warm + 2 * pace.warm_first + at_rates * _RATE_GRADIENTS * pace.alone
    burn_ins = len(LADDER) if plan.temperature == "auto" else 1
    stages_of_burn_in = 1 + (plan.sampler == "MCLMC") + (plan.temperature == "auto")
    spent += (1 + burn_ins * stages_of_burn_in) * pace.sampling_first
    spent += (_LOOKS + burn_ins * _LOOKS_IN_BURN_IN) * pace.look
    return max(int((_RESERVE * plan.seconds - spent) / pace.sampling), FEWEST_STEPS)


def measured_pace(posterior: Posterior, data: Any, plan: Plan) -> Pace:
    """A few steps of each kind, timed."""
    start = starting_weights("model", 0, posterior)
    starts = [start] * plan.chains
    device = device_of(posterior)

    def engine(size: Any, make: Any, batches: Any) -> Engine:
        settings = stages.settings_of(plan.chains, plan.stage_seed(6), size)
        return Engine(posterior, batches, make, None, settings)

    loader = isinstance(data, torch.utils.data.DataLoader)
    small = None if loader else plan.batch_size or default_batch_size(posterior.num_data)
    trained = engine(
        small,
        OptimizerFactory(adamw(posterior, 1e-9)),
        as_batches(data, small, plan.seed, device),
    )
    size: Any = "full" if plan.full_batch else plan.batch_size
    options = {name: value for name, value in plan.options.items() if value != "auto"}
    known = {} if plan.full_batch else {"lr": 1e-12}
    sampled = engine(size, sampler_factory(plan.sampler, known | options), make_batches(data, size, plan.seed, device))
    assert plan.seconds is not None
    timed = _TIMED * plan.seconds
    alone, _ = lasting_pace(sampled.build([0], starts[:1]), timed)
    warm, warm_first = _all_chains(trained, starts, plan.mode, timed)
    sampling, sampling_first = _all_chains(sampled, starts, plan.mode, timed)
    look = 0.0 if loader else _seconds_of_a_look(posterior, data, plan, starts)
    return Pace(warm, sampling, alone, warm_first, sampling_first, look)


def _all_chains(engine: Engine, starts: Sequence[Weights], mode: str, timed: float) -> tuple[float, float]:
    engine.choose_mode(mode, list(starts), False)
    groups = engine.groups(dict.fromkeys(range(engine.settings.chains), 0))
    step, first = lasting_pace(engine.build(groups[0], [starts[c] for c in groups[0]]), timed)
    return step * len(groups), first * len(groups)


def _seconds_of_a_look(posterior: Posterior, data: Any, plan: Plan, starts: Sequence[Weights]) -> float:
    parts = DataParts.of(data, as_batches(data, 1, plan.seed, device_of(posterior)), plan.seed)
    evaluation, stacked, times = Evaluation(posterior, parts.watched), stack(list(starts)), []
    for _ in range(3):
        start = time.perf_counter()
        evaluation(stacked)
        times.append(time.perf_counter() - start)
    return sorted(times)[1]


def _in_words(seconds: float) -> str:
    """As `Budget.parse` reads it; rounded up."""
    if seconds < 10:
        return f"{math.ceil(100 * seconds) / 100:g} s"
    return f"{math.ceil(seconds)} s" if seconds < 120 else f"{math.ceil(seconds / 60)} min"

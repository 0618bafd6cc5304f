"""What a run by autopilot may spend, and how a time, or a number of example-gradients, becomes numbers of steps.

Both are the same arithmetic: a step of the warm start, of the sampler, and of a single chain takes so many seconds, or
so many example-gradients. The clock is asked once, before the first stage: how long each of the three takes. That goes
into the plan, hence into the manifest; all that follows is arithmetic with it and with counts, so a resumed run decides
the same.
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
from langevin.inference.autopilot.data_parts import WATCHED, DataParts
from langevin.inference.autopilot.evaluate import Evaluation, stack
from langevin.inference.autopilot.mini_batches import noise_gradients
from langevin.inference.autopilot.plan import Plan, default_chains
from langevin.inference.autopilot.stopping import FEWEST
from langevin.inference.autopilot.temperature import LADDER
from langevin.inference.autopilot.warm_start import SECOND_PHASE, adamw, default_batch_size
from langevin.inference.chains import Weights
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of
from langevin.inference.starts import starting_weights
from langevin.inference.steppers import OptimizerFactory, sampler_factory
from langevin.inference.trial import lasting_pace
from langevin.samplers import SAMPLERS

FEWEST_STEPS = 250  # of each chain: two legs of burn-in, settling, fifty samples
_FEWEST_AT_A_TEMPERATURE = 300  # the first two, and a trial of half as many
_FEWEST_WARM = 100  # of the first phase of the warm start
_GOOD_STEPS, _GOOD_WARM = 1000, 1000  # there are fewer chains, but two, if all would have fewer steps than these
_FEWEST_FULL = 500  # of two chains, beside a warm start: small batches predict better than fewer full ones
RATE_STEPS = 1000  # at each rate that is tried, if time allows
_FEWEST_RATE_STEPS = 100
_RATES = 8  # that are tried, usually
RATE_GRADIENTS = 1.8  # steps that one at a rate takes as long as: some are for readings
_WARM_SHARE, _RATE_SHARE = 0.6, 0.2  # at most: chains that are few start at good optima, or never get there
_LARGER_SHARE = 0.8  # of the warm start, if there are many examples for each weight
_MANY = 10  # examples of a weight: with d weights, samples better a prediction by some d/2N nats an example
_USABLE, _USABLE_GRADIENTS = 0.93, 0.99  # share of a limit; files and the verdict take time, but no gradients
_LOOKS, _LOOKS_IN_BURN_IN = 400, 130  # at all chains: in the warm start and in sampling; in a burn-in
_STIFFEST = 40  # steps of MCLMC that its looks for the stiffest direction take as long as
_TIMED = 0.01  # of the time, for each kind of step


@dataclass(frozen=True)
class Pace:
    """What a step takes: of the warm start and of the sampler, all chains, and of the sampler with one chain.

    `first` is what the first steps of a stage take more, together (`lasting_pace`).
    """

    warm: float
    sampling: float
    alone: float
    warm_first: float = 0.0
    sampling_first: float = 0.0
    look: float = 0.0  # at the watched examples, with the weights of all chains
    spent: float = 0.0  # before the first stage
    measuring: float = 0.0  # metric and noise of gradients
    usable: float = _USABLE  # share of the limit

    def least(self, chains: float, rates: int, steps: int, warm: int = _FEWEST_WARM) -> float:
        """What this share of the chains, and this number of searches for a rate, take with so many steps."""
        trained = SECOND_PHASE * warm * self.warm + min(SECOND_PHASE * warm / traced.FIRST, 2) * self.warm_first
        sampled = steps * self.sampling + min(steps / traced.FIRST, 2) * self.sampling_first
        search = rates * _RATES * _FEWEST_RATE_STEPS * RATE_GRADIENTS * self.alone
        return (chains * (trained + sampled) + search + self.measuring) / self.usable + self.spent

    def of(self, share: float) -> Pace:
        """With this share of the chains."""
        names = ("warm", "sampling", "warm_first", "sampling_first", "look")
        return replace(self, **{name: share * getattr(self, name) for name in names})


@dataclass(frozen=True)
class Budget:
    """How much may be spent: seconds or example-gradients of everything; or, after the warm start, a multiple of it or
    steps of a chain."""

    seconds: float | None = None
    times: float | None = None
    steps: int | None = None
    gradients: int | None = None

    @classmethod
    def parse(cls, given: str | float | None) -> Budget:
        """From "10 min", "90 s", "2 h", "2x" (times the warm start), "5000 steps", "1e6 gradients", or seconds.

        >>> Budget.parse("10 min").seconds, Budget.parse("2x").times, Budget.parse("1e6 gradients").gradients
        (600.0, 2.0, 1000000)
        """
        if given is None:
            return cls()
        text = f"{given} s" if isinstance(given, int | float) and not isinstance(given, bool) else given
        units = "s|sec|seconds?|min|minutes?|h|hours?|x|steps|gradients"
        plain = re.sub(r"(?<=[0-9])[,_ ](?=[0-9]{3}\b)", "", str(text))  # "500,000 steps"
        match = re.fullmatch(rf"\s*([0-9.]+(?:e[0-9]+)?)\s*({units})\s*", plain)
        try:
            value = float(match.group(1)) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not 0 < value < math.inf:
            raise ValueError(
                f'budget={given!r}: write a time, "10 min", "90 s", "2 h", a multiple of what the warm start takes, '
                f'"5x", steps of each chain, burn-in included, "5000 steps", or the gradients of single examples in '
                f'all, "1e6 gradients".'
            )
        unit = match.group(2)
        if unit == "x":
            return cls(times=value)
        if unit == "steps":
            return cls(steps=max(1, int(value)))
        if unit == "gradients":
            return cls(gradients=max(1, int(value)))
        return cls(seconds=value * {"s": 1, "m": 60, "h": 3600}[unit[0]])


def within_limit(
    posterior: Posterior,
    data: Any,
    plan: Plan,
    *,
    chains_given: bool,
    regime_given: bool,
    since: float | None = None,
) -> Plan:
    """A plan that keeps a limit: with its pace, fewer chains if all would take too much, mini-batches if even two.

    `since`: when the time began, by `time.perf_counter()`.
    """
    if plan.limit is None:
        return plan
    pace = counted_pace(posterior, plan) if plan.seconds is None else measured_pace(posterior, data, plan)
    if plan.seconds is not None and since is not None:
        pace = replace(pace, spent=seconds_since(since))
    rates = searches(plan)
    chains, fewest = plan.chains, fewest_steps(plan)
    while not chains_given and chains > 1:
        share = chains / plan.chains
        steps = (max(_GOOD_STEPS, fewest), _GOOD_WARM) if chains > 2 else (fewest, _FEWEST_WARM)
        beside = share * max(steps[0], _FEWEST_FULL) * pace.sampling
        dear = plan.full_batch and not regime_given and beside > (1 - _warm_share(plan)) * pace.usable * plan.limit
        if pace.least(share, rates, *steps) <= plan.limit and not dear:
            break
        chains -= 1
    share = chains / plan.chains
    least = pace.least(share, rates, fewest)
    alone = chains == 1 and not chains_given  # a short chain by itself is far too certain
    if (least > plan.limit or alone) and plan.full_batch and not regime_given:
        small = replace(
            plan,
            sampler="SGHMC",
            full_batch=False,
            batch_size=default_batch_size(posterior.num_data),
            chains=plan.chains if chains_given else default_chains(False),
            why="mini-batches: full ones exceed the budget",
        )
        return within_limit(posterior, data, small, chains_given=chains_given, regime_given=True, since=since)
    in_words = _gradients_in_words if plan.seconds is None else _in_words
    if least > plan.limit:
        raise ValueError(
            f"The budget, {in_words(plan.limit)}, is too short for this model: warm start, burn-in and samples of "
            f"{chains} chain{'s' if chains > 1 else ''} take about {in_words(1.1 * least)} at least. Give "
            f'budget="{in_words(1.1 * least)}"{", or fewer chains" if chains > 1 else ""}, or sample fewer weights: '
            f"lv.last_layer(model), or lv.Posterior(…, sampled=…)."
        )
    if chains < plan.chains:
        all_of_them = in_words(pace.least(1, rates, max(_GOOD_STEPS, fewest), _GOOD_WARM))
        why = f"{plan.why}; {plan.chains} chains would take {all_of_them} at least"
        plan = replace(plan, chains=chains, why=why)
        pace = pace.of(share)
    return replace(plan, pace=asdict(pace))


def fewest_steps(plan: Plan) -> int:
    """Of each chain, after the warm start; those that are given are without the temperatures that are tried."""
    if plan.temperature != "auto" or plan.most_steps is not None:
        return FEWEST_STEPS
    return len(LADDER) * _FEWEST_AT_A_TEMPERATURE + FEWEST


def _warm_share(plan: Plan) -> float:
    """Of a limit, that the warm start may take."""
    return _LARGER_SHARE if plan.many_examples and not searches(plan) and plan.temperature != "auto" else _WARM_SHARE


def seconds_since(then: float) -> float:
    """By `time.perf_counter()`."""
    return time.perf_counter() - then


def by_noise(plan: Plan) -> bool:
    """Whether rate and momentum follow from the noise of gradients, without a search."""
    return plan.sampler == "SGHMC" and plan.options.keys() <= {"temperature", "momentum"} and plan.temperature != 0


def searches(plan: Plan) -> int:
    """How often a learning rate has to be searched for."""
    if "lr" in plan.options or SAMPLERS.named(plan.sampler).full_batch or by_noise(plan):
        return 0
    return len(LADDER) if plan.temperature == "auto" else 1


def rate_steps(plan: Plan) -> int:
    """Steps at each rate that is tried."""
    if plan.limit is None or plan.pace is None or searches(plan) == 0:
        return RATE_STEPS
    affordable = _RATE_SHARE * plan.limit / (searches(plan) * _RATES * RATE_GRADIENTS * plan.pace["alone"])
    return int(min(max(affordable, _FEWEST_RATE_STEPS), RATE_STEPS))


def warm_steps(plan: Plan) -> int | None:
    """The most steps that the first phase of the warm start may take, if a limit is given."""
    if plan.limit is None or plan.pace is None:
        return None
    pace = Pace(**plan.pace)
    rest = pace.usable * plan.limit - pace.spent - pace.measuring
    rest -= fewest_steps(plan) * pace.sampling  # a given sampler may need more of it
    return max(_FEWEST_WARM, int(min(_warm_share(plan) * plan.limit, rest) / (SECOND_PHASE * pace.warm)))


def many_examples(posterior: Posterior) -> bool:
    """Whether there are so many for each weight that samples gain little on an optimum."""
    return posterior.num_data >= _MANY * sum(p.numel() for p in posterior.trainable_parameters().values())


def steps_left(plan: Plan, warm: int, at_rates: int) -> int:
    """Steps of each chain for burn-in and sampling, after so many of the warm start and at rates."""
    assert plan.limit is not None
    assert plan.pace is not None
    pace = Pace(**plan.pace)
    spent = pace.spent + warm * pace.warm + 2 * pace.warm_first + at_rates * RATE_GRADIENTS * pace.alone
    burn_ins = len(LADDER) if plan.temperature == "auto" else 1
    settles = SAMPLERS.named(plan.sampler).explores or by_noise(plan)
    stages_of_burn_in = 1 + settles + (plan.temperature == "auto")
    spent += (1 + burn_ins * stages_of_burn_in) * pace.sampling_first
    spent += burn_ins * (plan.sampler == "MCLMC") * _STIFFEST * pace.sampling
    spent += (_LOOKS + burn_ins * _LOOKS_IN_BURN_IN) * pace.look
    return max(int((pace.usable * plan.limit - spent) / pace.sampling), fewest_steps(plan))


def counted_pace(posterior: Posterior, plan: Plan) -> Pace:
    """In example-gradients: arithmetic."""
    size = plan.batch_size or default_batch_size(posterior.num_data)
    each = (posterior.num_data if plan.full_batch else size) * SAMPLERS.named(plan.sampler).gradients_per_step
    measuring = 0.0
    if by_noise(plan):
        temperatures = len(LADDER) if plan.temperature == "auto" else 1
        metrics = (1 + temperatures) * plan.chains * min(WATCHED, posterior.num_data)
        measuring = float(metrics + 2 * temperatures * noise_gradients(size, posterior.num_data))
    of_all = float(plan.chains * size), float(plan.chains * each)
    return Pace(*of_all, float(each), measuring=measuring, usable=_USABLE_GRADIENTS)


def measured_pace(posterior: Posterior, data: Any, plan: Plan) -> Pace:
    """In seconds: a few steps of each kind, timed."""
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


def _gradients_in_words(gradients: float) -> str:
    return f"{gradients:.2g} gradients".replace("e+0", "e").replace("e+", "e")

"""The learning rate: as large as the temperature allows.

Too large a rate is too hot: discretization and mini-batch noise both raise the temperature above T, in stiff directions
first. Too small a rate wastes gradients. `find_lr` lets a chain settle, then reads at one rate how much hotter than T
it is, over all weights and along the stiffest direction (see `langevin.inference.heat`: the readings are exact,
positive, and settle fast). The excess grows as lr (Langevin) or lr² (momentum), so a reading at one rate says which
rate would be right; the next reading is there, until both agree. How stiff the stiffest direction is changes as the
chain moves along the softest ones, which takes longer than a round: so there are three rounds at the last rate, and
how they differ counts; and the stiffest direction's share of the tolerance has a margin for what they have not seen.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from langevin.core import html
from langevin.core.arguments import COUNT, FRACTION, SEED, validated
from langevin.core.batches import Batches, as_batches
from langevin.core.parameters import all_finite
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.core.progress import tqdm
from langevin.core.statistics import RECORD_LENGTH, Estimate, mean_and_error
from langevin.inference import checks
from langevin.inference.chains import Weights
from langevin.inference.checks import preserve_rng_state
from langevin.inference.heat import Gauge, Pair, gauge
from langevin.inference.one_chain import OneChain
from langevin.inference.steppers import SamplerLike, sampler_factory
from langevin.samplers import SGHMC, Sampler
from langevin.samplers.thermostat import Thermostat

_ROUNDS = 30
_AGREEMENT = 1.3  # of the rate of a reading and the rate that it suggests
_LAST_ROUNDS = 3  # at one rate, from which the result is found
_UNSETTLED = 0.03  # fall of the energy from one round to the next, over dim·T, from which a chain has not settled
_AIMS = 4  # searches for the stiffest direction, of a rate
_POWER_ITERATIONS = 5
_VARIANCE_EVERY = 5  # steps between measurements of Var(g), each of which takes a gradient
_ERRORS = 3  # of a reading that are kept away from the tolerance
_STIFFEST_SHARE = 1.6  # of the tolerance, for the stiffest direction: 2 is the promise, the rest is the margin
_ROUGHLY = 1.02  # an excess without a standard error, by curvatures, is known that well
_NEVER = Estimate(math.inf, math.nan)

SamplerAt = Callable[[float], Callable[..., Sampler]]


class Trial(NamedTuple):
    """Temperatures at one learning rate, over all weights and along the stiffest direction; infinite if it diverged."""

    lr: float
    temperature: Estimate
    stiffest: Estimate = Estimate(math.nan, math.nan)


@dataclass(frozen=True)
class RateSearch:
    """The learning rate that was found, and what was measured; `lv.plots.rate_search` draws it.

    At `lr` the mean temperature is expected to be `temperature`, and that along the stiffest direction `stiffest`. At
    `lr_by_mean`, which may be larger, the mean would still be within the tolerance, and the stiffest direction would
    not: mini-batch noise is what heats it, so a larger batch brings the two rates together.
    """

    lr: float
    lr_by_mean: float
    target_temperature: float
    tolerance: float
    temperature: float
    stiffest: float
    gradient_variance: Pair  # Var(g) of a mini-batch, of one weight on average and along the stiffest direction
    power: int  # the excess over the target temperature grows as lr to this power
    stability_limit: float
    trials: list[Trial] = field(repr=False)

    def __repr__(self) -> str:
        return (
            f"<RateSearch: lr {self.lr:.3g}, expected temperature {self.temperature:.3f}, along the stiffest direction "
            f"{self.stiffest:.3f}, target {self.target_temperature:g}, {len(self.trials)} rates tried>"
        )

    def _repr_html_(self) -> str:
        rows = [(f"{t.lr:.3g}", str(t.temperature), str(t.stiffest)) for t in self.trials]
        note = "lv.plots.rate_search(found) draws them."
        return html.table(repr(self), rows, ["lr", "temperature", "along the stiffest direction"], note)

    def expected(self, lr: float) -> tuple[float, float]:
        """The temperatures to expect at another rate, over all weights and along the stiffest direction."""
        if lr >= self.stability_limit:
            return math.inf, math.inf
        target, ratio = self.target_temperature, (lr / self.lr) ** self.power
        return target + (self.temperature - target) * ratio, target + (self.stiffest - target) * ratio


@validated(steps=COUNT, batch_size=COUNT, tolerance=FRACTION, seed=SEED)
def find_lr(
    posterior: Posterior,
    data: Any,
    sampler: SamplerLike,
    *,
    batch_size: int | None = None,
    steps: int = 1000,
    tolerance: float = 0.1,
    init: Weights | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> RateSearch:
    """The largest learning rate at which the mean temperature is within `tolerance` of T, and the stiffest direction's
    within twice that.

    The stiffest direction is that of the places which the search has seen. Where its curvature changes along soft
    directions, a long run may be a little hotter there, so a fifth of its tolerance is kept as a margin.

    For thermostats (SGNHT, ATMC) the rate is SGHMC's at the same momentum: their own mean temperature is T at almost
    any rate, but mini-batch noise that is correlated between weights leaves some directions hot and others cold, which
    friction weight by weight can't mend.

    Args:
        posterior: what is to be sampled; its model is left as it is.
        data: the training data, as for `sample`.
        sampler: a sampler class or its name, with its options but lr beside it: `lv.find_lr(…, lv.ATMC, momentum=0.8)`.
        batch_size: that of the run to come: mini-batch noise heats.
        steps: steps per rate; half of them settle, half are measured.
        tolerance: relative. Three standard errors of what was measured are kept away from it.
        init: where to start; by default at the model's weights.
        seed: of batches and noise.
        progress: show a progress bar.
        options: the sampler's options.
    """
    if not (0 < tolerance < 1 and steps >= 20):
        raise ValueError(f"find_lr needs 0 < tolerance < 1 and steps ≥ 20; given tolerance={tolerance}, steps={steps}.")
    posterior = copy.deepcopy(posterior)
    device = next(posterior.parameters()).device
    batches = as_batches(data, batch_size, seed, device)
    refuse_incompatible_layers(posterior)
    checks.check_data(posterior, batches, seed)
    with preserve_rng_state(), tqdm(unit="rate", disable=not progress, delay=1.0, file=sys.stderr) as bar:

        def show(trial: Trial) -> None:
            bar.set_postfix_str(f"lr {trial.lr:.2g}: T {trial.temperature.mean:.3g}")
            bar.update()

        return search_rate(
            posterior,
            batches,
            partial(sampler_at, sampler, options),
            start=init,
            seed=seed,
            steps=steps,
            tolerance=tolerance,
            report=show,
        )


def search_rate(
    posterior: Posterior,
    batches: Batches,
    at: SamplerAt,
    *,
    start: Weights | None = None,
    seed: int = 0,
    steps: int = 1000,
    tolerance: float = 0.1,
    report: Callable[[Trial], None] = lambda trial: None,
) -> RateSearch:
    """`find_lr` for batches and a function from a rate to what makes the sampler.

    The result is a function of the arguments, unless batches are those of a DataLoader. `report` is called after each
    rate.
    """
    params = posterior.trainable_parameters()
    probe = at(1e-3)(list(params.values()), num_data=posterior.num_data, seed=0, chain=0)
    if not probe.injects_noise or probe.param_groups[0]["temperature"] == 0:
        raise ValueError(f"{type(probe).__name__} at temperature 0 has no temperature to hold; tune it by its loss.")
    if probe.full_batch:
        raise ValueError(
            f"{type(probe).__name__} finds its own step size during burn-in, so there is no lr to look for; write "
            f"lv.sample(posterior, data, lv.{type(probe).__name__})."
        )
    target = float(probe.param_groups[0]["temperature"])
    if isinstance(probe, Thermostat):
        same = {name: probe.param_groups[0][name] for name in ("momentum", "integrator", "temperature")}
        at = partial(sampler_at, SGHMC, same)
    weights = start or {name: p.detach().clone() for name, p in params.items()}
    search = _Search(posterior, batches, at, target, tolerance, steps, seed, weights)
    while (found := search.advance()) is None:
        report(search.trials[-1])
    return found


class _Round(NamedTuple):
    """What was measured at one rate."""

    gauge: Gauge
    mean: list[float]
    stiffest: list[float]
    variance: Pair
    energy: Estimate  # U


class _Reading(NamedTuple):
    """The temperatures by some rounds at one rate, and the largest rates that they allow."""

    mean: Estimate
    stiffest: Estimate
    lr: float
    lr_by_mean: float


@dataclass
class _Search:
    """The state of a search: a chain that goes on from round to round, at one rate after another."""

    posterior: Posterior
    batches: Batches
    at: SamplerAt
    target: float
    tolerance: float
    steps: int
    seed: int
    weights: Weights
    trials: list[Trial] = field(default_factory=list)
    lr: float | None = None
    energy: Estimate = _NEVER  # of the last round
    stiff: list[Tensor] = field(default_factory=list)  # where the next power iteration starts
    agreeing: list[_Round] = field(default_factory=list)  # at the present rate, which they allow

    def advance(self) -> RateSearch | None:
        """One round; the result, once there is one."""
        if len(self.trials) >= _ROUNDS:
            seen = ", ".join(f"{t.lr:.2g}: {t.temperature.mean:.3g}" for t in self.trials[-5:])
            raise ValueError(
                f"No learning rate was found in {_ROUNDS} rounds of {self.steps} steps (lr: T — {seen}): the chain has "
                f"not settled. Give more steps, or a nearer start (init=lv.find_map(…))."
            )
        if self.lr is None:
            self.lr = self._first_rate()
        chain = self._chain(self.lr)
        found = self._round(chain)
        if found is None:
            self.trials.append(Trial(self.lr, _NEVER, _NEVER))
            self.lr, self.energy, self.agreeing = self.lr / 4, _NEVER, []
            return None
        reading = self._read([found])
        self.trials.append(Trial(self.lr, reading.mean, reading.stiffest))
        self.weights = chain.copy(0)
        energy = found.energy
        error = math.hypot(self.energy.error, energy.error) if energy.known and self.energy.known else 0.0
        fall = self.energy.mean - energy.mean
        settled = fall < max(_UNSETTLED * self.target * found.gauge.count, 3 * error)
        self.energy = energy
        if not settled:
            self.lr, self.agreeing = min(found.gauge.limit() / 10, 4 * self.lr), []
            return None
        if not self.agreeing and max(reading.lr / self.lr, self.lr / reading.lr) > _AGREEMENT:
            self.lr = min(max(reading.lr, self.lr / 8), 4 * self.lr)
            return None
        self.agreeing.append(found)
        return self._result() if len(self.agreeing) == _LAST_ROUNDS else None

    def _read(self, rounds: Sequence[_Round]) -> _Reading:
        """The rates that rounds at the present one allow, together."""
        assert self.lr is not None
        mean, stiffest = (_with_error(values) for values in ([r.mean for r in rounds], [r.stiffest for r in rounds]))
        power, limit = rounds[0].gauge.power, min(r.gauge.limit() for r in rounds)
        by_mean = min(self.lr * self._factor(mean, 1.0, power), 0.5 * limit)
        return _Reading(mean, stiffest, min(by_mean, self.lr * self._factor(stiffest, _STIFFEST_SHARE, power)), by_mean)

    def _result(self) -> RateSearch:
        assert self.lr is not None
        reading, power = self._read(self.agreeing), self.agreeing[0].gauge.power
        ratio = (reading.lr / self.lr) ** power
        return RateSearch(
            lr=reading.lr,
            lr_by_mean=reading.lr_by_mean,
            target_temperature=self.target,
            tolerance=self.tolerance,
            temperature=self.target + (reading.mean.mean - self.target) * ratio,
            stiffest=self.target + (reading.stiffest.mean - self.target) * ratio,
            gradient_variance=self.agreeing[-1].variance,
            power=power,
            stability_limit=min(r.gauge.limit() for r in self.agreeing),
            trials=sorted(self.trials),
        )

    def _factor(self, measured: Estimate, share: float, power: int) -> float:
        """By what to multiply the rate, so that the excess and three of its errors are this share of the tolerance."""
        excess = _ROUGHLY * max(measured.mean - self.target, 0.0) + _ERRORS * measured.error
        allowed = share * self.tolerance * self.target
        now, then = excess / (self.target + excess), allowed / (self.target + allowed)
        # additive noise heats in proportion, discretization as x/(1 − x): the smaller rate is right for both
        return float(min(then / max(now, 1e-12), allowed / max(excess, 1e-12)) ** (1 / power))

    def _first_rate(self) -> float:
        """A fraction of the stability limit at the start."""
        chain = self._chain(1e-12)
        thermometer = gauge(chain)
        self.stiff = thermometer.aim([], 3 * _POWER_ITERATIONS)
        return thermometer.limit() / 20

    def _chain(self, lr: float) -> OneChain:
        copied = copy.deepcopy(self.posterior)
        seed = self.seed + len(self.trials)
        forever = 1 << 60  # one rate for all parameters: that of the noise follows from it
        return OneChain(copied, [0], [self.weights], self.batches, self.at(lr), None, seed=seed, burn_in=forever)

    def _round(self, chain: OneChain) -> _Round | None:
        """Settle, look for the stiffest direction, read; None if the chain diverged."""
        thermometer, stiff = gauge(chain), self.stiff
        readings: list[Pair] = []
        variances: list[Pair] = []
        losses = []
        half = self.steps // 2
        try:
            for step in range(self.steps):
                if step == half:
                    chain.freeze()
                if step >= half and (step - half) % max(half // _AIMS, 1) == 0:  # it turns as the chain moves
                    stiff = thermometer.aim(stiff, _POWER_ITERATIONS)
                (loss,) = chain.backward()
                if not math.isfinite(loss):
                    return None
                if step >= half:
                    losses.append(loss)
                    fresh = (step - half) % _VARIANCE_EVERY == 0
                    if fresh:
                        variances.append(thermometer.gradient_variance())
                    if fresh or thermometer.every_step:
                        readings.append(thermometer.read(variances[-1]))
                chain.advance()
        except FloatingPointError:
            return None
        if not all(all_finite(p) for p in chain.params) or not all(math.isfinite(t) for pair in readings for t in pair):
            return None
        self.stiff = stiff
        mean, stiffest = (list(values) for values in zip(*readings, strict=True))
        variance = Pair(*(statistics.fmean(values) for values in zip(*variances, strict=True)))
        energy = mean_and_error([self.posterior.num_data * loss for loss in losses])
        return _Round(thermometer, mean, stiffest, variance, energy)


def _with_error(rounds: Sequence[Sequence[float]]) -> Estimate:
    """Their mean and its error; if that is unknown, the error of as few values as would make it known."""
    found = mean_and_error(*rounds)
    values = [value for each in rounds for value in each]
    spread = statistics.pstdev(values)
    return found if found.known else Estimate(found.mean, spread * math.sqrt(RECORD_LENGTH / len(values)))


def sampler_at(sampler: SamplerLike, options: Mapping[str, Any], lr: float) -> Callable[..., Sampler]:
    """What makes the sampler, with options, at a learning rate."""
    return sampler_factory(sampler, {**options, "lr": lr})

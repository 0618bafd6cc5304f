"""The learning rate: as large as the temperature allows.

Too large a rate is too hot: discretization and mini-batch noise both raise the configurational temperature above T. Too
small a rate wastes gradients. `find_lr` walks up a ladder of rates (down, if it begins too hot), each continuing
from the weights that the one before it left, and takes the highest rung on which the temperature is T.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from tqdm.auto import tqdm

from langevin.core.batches import as_batches
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.core.statistics import Estimate, mean_and_error
from langevin.diagnostics.curvature import largest_curvature
from langevin.inference import checks
from langevin.inference.chains import Weights
from langevin.inference.checks import preserve_rng_state
from langevin.inference.one_chain import OneChain
from langevin.inference.steppers import SamplerLike, sampler_factory
from langevin.samplers import SGHMC, Sampler
from langevin.samplers.thermostat import Thermostat

_RUNGS = 40
_BISECTIONS = 4


class Trial(NamedTuple):
    """What was measured at one learning rate; the temperature is infinite where the chain diverged."""

    lr: float
    temperature: Estimate

    def holds(self, target: float, tolerance: float) -> bool:
        """Whether the temperature is the target, within the tolerance and at most as much error of measurement."""
        error = self.temperature.error if math.isfinite(self.temperature.error) else 0.0
        return abs(self.temperature.mean - target) <= tolerance * target + min(error, tolerance * target)


@dataclass(frozen=True)
class RateSearch:
    """The learning rate that was found, and the temperatures that were measured; `lv.plots.rate_search` draws them."""

    lr: float
    target_temperature: float
    tolerance: float
    trials: list[Trial] = field(repr=False)


def find_lr(
    posterior: Posterior,
    data: Any,
    sampler: SamplerLike,
    *,
    batch_size: int | None = None,
    steps: int = 1000,
    tolerance: float = 0.1,
    ladder: float = 1.5,
    init: Weights | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> RateSearch:
    """The largest learning rate at which the configurational temperature is within `tolerance` of T.

    For thermostats (SGNHT, ATMC) the rate is SGHMC's at the same momentum: their own mean temperature is T at almost
    any rate, but mini-batch noise that is correlated between weights leaves some directions hot and others cold, which
    friction weight by weight can't mend.

    Args:
        posterior: what is to be sampled; its model is left as it is.
        data: the training data, as for `sample`.
        sampler: a sampler class or its name, with its options but lr beside it: `lv.find_lr(…, lv.ATMC, momentum=0.8)`.
        batch_size: that of the run to come: mini-batch noise heats.
        steps: steps per rate; half of them settle, half are measured. If even small rates do not come up to T, the
            chain is too short to settle: give it more, or start it nearer (`init=lv.find_map(…)`).
        tolerance: relative.
        ladder: the ratio of one rate to the next.
        init: where to start; by default at the model's weights.
        seed: of batches and noise.
        progress: show a progress bar.
        options: the sampler's options.
    """
    if not (0 < tolerance < 1 and ladder > 1 and steps >= 20):
        raise ValueError(
            f"find_lr needs 0 < tolerance < 1, ladder > 1 and steps ≥ 20; given tolerance={tolerance}, "
            f"ladder={ladder}, steps={steps}."
        )
    posterior = copy.deepcopy(posterior)
    device = next(posterior.parameters()).device
    batches = as_batches(data, batch_size, seed, device)
    params = list(posterior.trainable_parameters().values())
    at = _at_rate(sampler, options)
    probe = at(1e-3)(params, num_data=posterior.num_data, seed=0, chain=0)
    if not probe.injects_noise or probe.param_groups[0]["temperature"] == 0:
        raise ValueError(f"{type(probe).__name__} at temperature 0 has no temperature to hold; tune it by its loss.")
    target = float(probe.param_groups[0]["temperature"])
    if isinstance(probe, Thermostat):
        at = _at_rate(SGHMC, {"momentum": probe.param_groups[0]["momentum"], "temperature": target})
        probe = at(1e-3)(params, num_data=posterior.num_data, seed=0, chain=0)
    if probe.injects_noise:
        refuse_incompatible_layers(posterior)
    checks.check_data(posterior, batches, seed)
    x, y = tree_map(lambda t: t.to(device), batches.fetch(0, 0))
    limit = probe.stability_limit(max(largest_curvature(posterior, x, y), 1e-12))

    weights: Weights = init or {name: p.detach() for name, p in posterior.trainable_parameters().items()}
    trials: list[Trial] = []
    lr = limit / 30
    with preserve_rng_state(), tqdm(unit="rate", disable=not progress, delay=1.0, file=sys.stderr) as bar:

        def attempt(lr: float) -> bool:
            """Whether this rate is too hot; the next attempt starts where this one ended."""
            nonlocal weights
            copied = copy.deepcopy(posterior)
            chain = OneChain(copied, [0], [weights], batches, at(lr), None, seed=seed + len(trials))
            temperature = _temperature(chain, steps)
            trials.append(Trial(lr, temperature))
            bar.set_postfix_str(f"lr {lr:.2g}: T {temperature.mean:.3g}")
            bar.update()
            if math.isfinite(temperature.mean):
                weights = chain.copy(0)
            return not temperature.mean <= target * (1 + tolerance)

        too_hot = attempt(lr)
        while len(trials) < _RUNGS:  # down the ladder until it is not too hot, or up until it is
            lr = lr / ladder if too_hot else lr * ladder
            if attempt(lr) != too_hot:
                break
        cold, hot = (lr, lr * ladder) if too_hot else (lr / ladder, lr)
        for _ in range(_BISECTIONS):  # the rungs on both sides may both be off
            if any(trial.holds(target, tolerance) for trial in trials):
                break
            middle = math.sqrt(cold * hot)
            cold, hot = (cold, middle) if attempt(middle) else (middle, hot)
    trials.sort()
    within = [trial for trial in trials if trial.holds(target, tolerance)]
    if not within:
        seen = ", ".join(f"{t.lr:.2g}: {t.temperature.mean:.2g}" for t in trials[-5:])
        raise ValueError(
            f"No learning rate held the temperature within {tolerance:.0%} of {target:g} (lr: T — {seen}). The chain "
            f"needs longer to settle: give more steps (now {steps}), a nearer start (init=lv.find_map(…)), or a larger "
            f"batch."
        )
    return RateSearch(within[-1].lr, target, tolerance, trials)


def _at_rate(sampler: SamplerLike, options: Mapping[str, Any]) -> Callable[[float], Callable[..., Sampler]]:
    """From a learning rate to what makes the sampler."""
    return lambda lr: sampler_factory(sampler, {**options, "lr": lr})


def _temperature(chain: OneChain, steps: int) -> Estimate:
    """Settle, averaging the weights in the second quarter; then measure about that mean."""
    readings: list[float] = []
    try:
        for step in range(steps):
            (loss,) = chain.backward()
            if not math.isfinite(loss):
                return Estimate(math.inf, math.nan)
            if steps // 4 <= step < steps // 2:
                chain.thermometer.average(chain.params)
            elif step >= steps // 2:
                readings += chain.thermometer.measure(chain.params).tolist()
            chain.advance()
            if step == steps // 2:
                chain.freeze()
    except FloatingPointError:
        return Estimate(math.inf, math.nan)
    finite = all(bool(torch.isfinite(p).all()) for p in chain.params)
    return mean_and_error(readings) if finite else Estimate(math.inf, math.nan)

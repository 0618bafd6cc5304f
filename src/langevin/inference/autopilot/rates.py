"""Metric, rate and momentum of the sampler: found once for each temperature, and kept in the manifest.

MCLMC and MAMS adapt their step size by themselves, in the metric √s of the posterior's scales. SGHMC with mini-batches
has the metric s, and its rate and momentum follow from the noise of gradients there (`mini_batches`), at the optimum
for burn-in and again where burn-in has led. Any other sampler gets the rate of `find_lr`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from langevin.core.batches import Batches, batch_size_of
from langevin.core.posterior import Posterior
from langevin.inference.autopilot import budget as budgets
from langevin.inference.autopilot.burn_in import BurnIn
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.mini_batches import Tuned, measure_noise, tune, with_metric
from langevin.inference.autopilot.plan import Plan
from langevin.inference.autopilot.scales import DAMPING, posterior_scales
from langevin.inference.autopilot.stages import weights_at
from langevin.inference.chains import Weights
from langevin.inference.find_lr import find_lr
from langevin.samplers import SAMPLERS

_RAISED = 1.5  # at most, after burn-in: gradients of classes that are separated say nothing of where chains will go
Metrics = list[list[Tensor]]  # A^{1/2}, by chain, then by parameter
Decide = Callable[[str, int, str, str], None]


@dataclass
class Rates:
    """What was found, in `about`, a part of the manifest; `decide` writes it down."""

    sampled: Posterior
    data: Any
    parts: DataParts
    plan: Plan
    about: dict[str, Any]
    decide: Decide
    progress: bool

    def __post_init__(self) -> None:
        self._at_start: Metrics | None = None

    @property
    def by_noise(self) -> bool:
        """Whether rate and momentum follow from the noise of gradients."""
        return budgets.by_noise(self.plan) and not self.about.get("no_metric")

    def of(self, temperature: float | None, *, after: bool = False) -> dict[str, Any]:
        """The options that were found for a temperature, those `after` burn-in if they are others."""
        key = _key(temperature)
        found: dict[str, Any] = self.about.get("rates", {}).get(key, {})
        later: dict[str, Any] = self.about.get("rates_after", {}).get(key, {}) if after else {}
        return {name: value for name, value in (found | later).items() if name in ("lr", "momentum")}

    def lowered(self, temperature: float | None) -> int:
        """How often a rate was lowered, since chains diverged."""
        return int(self.about.get("rates", {}).get(_key(temperature), {}).get("lowered", 0))

    def lower(self, temperature: float | None, most: int, why: str) -> bool:
        """A quarter of the rate from now on; False if there is none, or if it was lowered so often."""
        rate = self.about.get("rates", {}).get(_key(temperature))
        if rate is None or rate.get("lowered", 0) >= most:
            return False
        rate["lr"], rate["lowered"] = rate["lr"] / 4, rate.get("lowered", 0) + 1
        self.about.get("rates_after", {}).pop(_key(temperature), None)
        self.decide("burn-in", 0, f"lr = {rate['lr']:.3g}, a quarter of the one before", why)
        return True

    def find(
        self, weights: Sequence[Weights], batches: Batches, temperature: float | None, steps: Callable[[], int]
    ) -> None:
        """For burn-in at a temperature, unless it is known or not needed; `steps` of a chain that can be paid for."""
        rates = self.about.setdefault("rates", {})
        kind = SAMPLERS.named(self.plan.sampler)
        if _key(temperature) in rates or "lr" in self.plan.options or kind.full_batch:
            return
        metrics = self.metrics(weights) if self.by_noise else None
        if metrics is None:
            self._search(weights[0], temperature)
            return
        found = self._tuned(weights[0], batches, metrics[0], temperature, steps(), seed=4)
        rates[_key(temperature)] = {"lr": found.lr, "momentum": found.momentum}
        self._tell(found, temperature, "")

    def after_burn_in(
        self, burnt: BurnIn, names: Sequence[str], batches: Batches, temperature: float | None, steps: int
    ) -> BurnIn:
        """Chains in the metric of where they are, with the rate and the momentum that fit there."""
        chains = list(burnt.checkpoints.values())
        weights = [weights_at(each, names) for each in chains]
        metrics = self._metrics(weights, f"after{self._attempt(temperature)}")
        key, later = _key(temperature), self.about.setdefault("rates_after", {})
        if key not in later:
            found = self._tuned(weights[0], batches, metrics[0], temperature, steps, seed=7)
            most = self.of(temperature)["lr"] * (1.0 if self.lowered(temperature) else _RAISED)
            limited = f" (found {found.lr:.3g}: not raised more)" if found.lr > most else ""
            found = found.at_most(most)
            later[key] = {"lr": found.lr, "momentum": found.momentum}
            self._tell(found, temperature, f", after burn-in{limited}")
        chosen = later[key] | {"reference_lr": later[key]["lr"]}
        moved = {}
        for number, each, metric in zip(burnt.checkpoints, chains, metrics, strict=True):
            groups = [group | chosen for group in each.values["groups"]]
            tensors = with_metric(each.tensors, names, metric)
            moved[number] = replace(each, tensors=tensors, values={**each.values, "groups": groups})
        return replace(burnt, checkpoints=moved)

    def metrics(self, weights: Sequence[Weights]) -> Metrics | None:
        """At the optima, if gradients of single examples can be had."""
        if self._at_start is not None or self.about.get("no_metric"):
            return self._at_start
        try:
            self._at_start = self._metrics(weights, "at the start")
        except (RuntimeError, ValueError) as error:
            self.about["no_metric"] = True
            self.decide("burn-in", 0, "no metric", f"gradients by example failed: {str(error).splitlines()[0]}")
            return None
        if not self.about.get("told_metric"):
            self.about["told_metric"] = True
            flat = torch.cat([t.flatten() for t in self._at_start[0]])
            spread = f"scales from {float(flat.min()):.1g} to {float(flat.max()):.1g}"
            self.decide("burn-in", 0, "metric: by the Fisher information and the prior at each optimum", spread)
        return self._at_start

    def renewed(self, weights: Sequence[Weights]) -> Metrics | None:
        """At other weights, if there is a metric at all."""
        return None if self.about.get("no_metric") else self._metrics(weights, "after")

    def _metrics(self, weights: Sequence[Weights], when: str) -> Metrics:
        damping = DAMPING if not self.plan.full_batch else 0.0
        scales = posterior_scales(self.sampled, self.parts.watched, weights, damping)
        self._spend(f"metric {when}", len(weights) * batch_size_of(self.parts.watched[1]))
        return [[s.sqrt() for s in each] for each in scales] if self.plan.full_batch else scales

    def _tuned(
        self, weights: Weights, batches: Batches, metric: list[Tensor], temperature: float | None, steps: int, seed: int
    ) -> Tuned:
        noise = measure_noise(self.sampled, batches, weights, metric, self.plan.stage_seed(seed))
        self._spend(f"noise {seed}{self._attempt(temperature)}", noise.example_gradients)
        target = self.plan.temperature if temperature is None else temperature
        return tune(noise, float(target), steps, momentum=self.plan.options.get("momentum"))

    def _search(self, weights: Weights, temperature: float | None) -> None:
        """By `find_lr`."""
        options = self.plan.options | ({} if temperature is None else {"temperature": temperature})
        steps = budgets.rate_steps(self.plan)
        found = find_lr(
            self.sampled,
            self.data,
            SAMPLERS.named(self.plan.sampler),
            batch_size=self.plan.batch_size,
            init=weights,
            seed=self.plan.stage_seed(4),
            steps=steps,
            progress=self.progress,
            **{name: value for name, value in options.items() if value != "auto"},
        )
        self.about["rates"][_key(temperature)] = {"lr": found.lr}
        self.about["steps_at_rates"] = self.about.get("steps_at_rates", 0) + steps * len(found.trials)
        why = f"{len(found.trials)} rates tried; expected temperature {found.temperature:.3g}"
        self.decide("burn-in", 0, f"lr = {found.lr:.3g}{_at(temperature)}", why)

    def _tell(self, found: Tuned, temperature: float | None, when: str) -> None:
        decided = f"lr = {found.lr:.3g}, momentum {found.momentum:.2f}{_at(temperature)}{when}"
        self.decide("burn-in", 0, decided, str(found))

    def _attempt(self, temperature: float | None) -> str:
        """At which temperature, and how often its rate was lowered."""
        lowered = self.lowered(temperature)
        return _at(temperature) + (f", lowered {lowered} times" if lowered else "")

    def _spend(self, what: str, gradients: int) -> None:
        """Note example-gradients, by what they were for: a resumed run that repeats it counts it once."""
        self.about.setdefault("rate_gradients", {})[what] = gradients


def _key(temperature: float | None) -> str:
    return "" if temperature is None else f"{temperature:g}"


def _at(temperature: float | None) -> str:
    return "" if temperature is None else f" at T = {temperature:g}"

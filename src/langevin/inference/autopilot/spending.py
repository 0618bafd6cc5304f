"""What a run by autopilot may spend after the warm start, and what it has spent, in example-gradients and in steps.

Both are entries of its part of the manifest, `about`: what was decided there is not decided again by a resumed run.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

from langevin.core.user_level import user_level
from langevin.inference.autopilot import budget as budgets
from langevin.inference.autopilot.plan import Plan
from langevin.inference.autopilot.rates import Decide
from langevin.inference.autopilot.warm_start import WarmStart
from langevin.samplers import SAMPLERS

_DIVERGED = "diverged"  # the stage of attempts whose chains diverged


@dataclass
class Spending:
    """By stage; `batch` examples are a batch of the sampler."""

    about: dict[str, Any]
    plan: Plan
    batch: int
    decide: Decide

    def affordable(self, warm: WarmStart) -> int:
        """Steps of each chain after the warm start."""
        if "steps" in self.about:
            return int(self.about["steps"])
        if self.plan.limit is not None:
            steps = budgets.steps_left(self.plan, warm.steps, self.about.get("steps_at_rates", 0))
        else:
            steps = self.plan.affordable_steps(warm.example_gradients, self._of_a_step)
        if steps < (fewest := budgets.fewest_steps(self.plan)):
            warnings.warn(
                f"The budget allows {steps} steps of each chain, too few for burn-in and samples: {fewest} will be "
                f'taken. Give a larger one, such as budget="{10 * fewest} steps".',
                stacklevel=user_level(),
            )
            steps = fewest
        self.about["steps"] = steps
        self.decide("burn-in", 0, f"at most {steps:,} steps of each chain", self.plan.budget)
        return steps

    def steps_for(self, burn_in: str, warm: WarmStart) -> int:
        """Those that are left for the stage of that name and all after it."""
        decided = self.about.setdefault("steps_by_stage", {})
        if burn_in not in decided:
            left = self.affordable(warm) - self.steps_besides()
            decided[burn_in] = max(left, budgets.FEWEST_STEPS)
        return int(decided[burn_in])

    def steps_besides(self) -> int:
        """Those that metric, rate and attempts that diverged have taken."""
        if self.plan.most_steps is not None:  # as given
            return 0
        spent = self.about.get("example_gradients", {}).get(_DIVERGED, 0)
        spent += 0 if self.plan.full_batch else self._measured  # of full batches the metric takes one step
        spent += self._searched if self.plan.limit is None else 0  # `steps_left` knows of the search
        return self.in_steps(spent / self.plan.chains)

    def steps_foreseen(self) -> int:
        """Those that the measurements after burn-in will take, of a number of gradients."""
        if self.plan.gradients is None or self.plan.pace is None:
            return 0
        return max(0, self.in_steps((self.plan.pace["measuring"] - self._measured) / self.plan.chains))

    def in_steps(self, example_gradients: float) -> int:
        """How many steps of a chain take so many."""
        return math.ceil(example_gradients / self._of_a_step)

    def add(self, stage: str, example_gradients: int) -> None:
        """Note what a stage took; to be called once for each."""
        spent = self.about.setdefault("example_gradients", {})
        spent[stage] = spent.get(stage, 0) + example_gradients

    def add_diverged(self, example_gradients: int) -> None:
        """Note what an attempt took whose chains diverged."""
        self.add(_DIVERGED, example_gradients)

    def add_metric_and_rate(self) -> None:
        """Note what `Rates` has counted."""
        self.add("metric and rate", self._measured + self._searched)

    @property
    def _of_a_step(self) -> int:
        """Example-gradients of one chain."""
        return self.batch * SAMPLERS.named(self.plan.sampler).gradients_per_step

    @property
    def _measured(self) -> int:
        return sum(self.about.get("rate_gradients", {}).values())

    @property
    def _searched(self) -> int:
        return int(budgets.RATE_GRADIENTS * self.about.get("steps_at_rates", 0) * self.batch)

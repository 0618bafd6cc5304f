"""What the autopilot knows before the first step: the sampler, full batches or mini-batches, chains, budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from langevin.core import random
from langevin.core.batches import Batches, LoaderBatches, batch_size_of
from langevin.core.outputs import call
from langevin.core.posterior import Posterior
from langevin.core.random import Stream
from langevin.errors import RunError
from langevin.inference.checks import why_no_loss

_FULL_BATCH = 1e8  # multiply-adds of a forward pass over all data, up to which batches are full
_CHAINS = {True: 10, False: 4}  # with full batches, and with mini-batches
_CHEAP = 4e11  # multiply-adds of all chains that are spent in any case
_CHEAP_STEPS = 10_000  # at most
TIMES_WARM_START = 20.0


@dataclass(frozen=True)
class Plan:
    """What was planned; JSON-serializable, for the manifest."""

    sampler: str
    options: dict[str, Any]
    full_batch: bool
    chains: int
    seed: int
    mode: str
    compile: bool | None
    batch_size: int | None  # of mini-batches
    temperature: float | str
    seconds: float | None  # of everything, if given
    pace: dict[str, float] | None  # what was timed then: `Pace`
    gradients: int | None  # of single examples, in all, if given
    times: float | None
    most_steps: int | None  # of each chain, burn-in included, if given
    steps: int | None  # of each chain after burn-in, if given
    multiply_adds: float  # of one example
    many_examples: bool  # for each weight
    why: str

    @property
    def limit(self) -> float | None:
        """Of everything: in seconds, or in example-gradients."""
        return self.gradients if self.seconds is None else self.seconds

    @property
    def counts_gradients(self) -> bool:
        """Whether the budget is a number of example-gradients, as it is given or as a multiple."""
        return self.gradients is not None or self.times is not None

    @property
    def budget(self) -> str:
        """What may be spent, in words."""
        if self.seconds is not None:
            return f"{self.seconds:.0f} s in all"
        if self.gradients is not None:
            return f"{self.gradients:,} example-gradients in all"
        if self.most_steps is not None:
            return "as given"
        return f"{self.times or TIMES_WARM_START:g} times the warm start's gradients, or what is cheap"

    def stage_seed(self, stage: int) -> int:
        """Of a stage before the last: other random numbers than those of the run."""
        return random.integer(seed=self.seed, chain=0, step=stage, stream=Stream.SPLIT)

    def entries(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def of_manifest(cls, entries: Mapping[str, Any]) -> Plan:
        """As a manifest has it, which may have been written by anyone."""
        try:
            return cls(**{name: entries[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise RunError(f"The manifest's plan of the autopilot lacks {error}.") from None

    def affordable_steps(self, warm_gradients: int, per_step: int) -> int:
        """Steps of each chain after the warm start, burn-in included, by count; `per_step` in example-gradients."""
        if self.most_steps is not None:
            return self.most_steps
        times = self.times or TIMES_WARM_START
        most = int(times * warm_gradients / per_step)
        if self.times is None:  # of a small network even thousands of steps are little
            cheap = _CHEAP / max(3 * self.multiply_adds * per_step * self.chains, 1.0)
            most = max(most, min(int(cheap), _CHEAP_STEPS))
        return max(most, 1)


def choose_regime(posterior: Posterior, batches: Batches) -> tuple[bool, float, str]:
    """Whether batches are full, the multiply-adds of one example, and why."""
    each = multiply_adds(posterior, batches)
    if isinstance(batches, LoaderBatches):
        return False, each, "mini-batches, since a DataLoader can't be indexed (its data set can: loader.dataset)"
    total = each * (batches.num_data or 1)
    if total <= _FULL_BATCH:
        return True, each, f"full batches: a forward pass over all data takes {total:.1g} multiply-adds"
    return False, each, f"mini-batches: a forward pass over all data takes {total:.1g} multiply-adds"


def full_batch_sampler(posterior: Posterior) -> str:
    """MCLMC, or, where the curvature of the likelihood has no bound, MAMS.

    Predicted or sampled noise of σ has a curvature of 1/σ²: chains find ever stiffer regions, and without a Metropolis
    test heat up there. With it, steps are smaller: of 4,000 weights about a third.
    """
    return "MCLMC" if getattr(posterior.likelihood, "bounded_curvature", False) else "MAMS"


def default_chains(full_batch: bool) -> int:
    """How many chains there are, unless the user says."""
    return _CHAINS[full_batch]


@torch.no_grad()
def multiply_adds(posterior: Posterior, batches: Batches) -> float:
    """Of the forward pass of one example, counted in matrix products and convolutions."""
    x, y = batches.peek()
    device = next(posterior.parameters()).device
    x = tree_map(lambda t: t.to(device), x)
    try:
        with FlopCounterMode(display=False) as counter:
            call(posterior.model, x)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(why_no_loss(posterior, x, error)) from error
    return max(float(counter.get_total_flops()) / 2 / batch_size_of(y), 1.0)

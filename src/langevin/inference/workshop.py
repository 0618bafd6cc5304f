"""Makes the chains that advance together, and decides which do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from langevin.core.batches import Batches
from langevin.core.posterior import Posterior
from langevin.inference import distributed
from langevin.inference.chains import Chains, MakeSampler, MakeScheduler, OneChain, StackedChains, Weights
from langevin.inference.settings import RunSettings
from langevin.samplers import Sampler
from langevin.storage.files import dtype_of


@dataclass
class Workshop:
    """Makes the chains that advance together."""

    posterior: Posterior
    batches: Batches
    sampler: MakeSampler
    schedule: MakeScheduler | None
    plan: RunSettings
    place: distributed.Place = distributed.ALONE

    def trial(self) -> Workshop:
        """The work of the first process, without the others."""
        mine = replace(self.plan, chains=len(self.place.blocks(self.plan.chains)[0]))
        return replace(self, plan=mine, place=distributed.ALONE)

    def probe(self) -> Sampler:
        """A sampler that is only looked at."""
        params = list(self.posterior.trainable_parameters().values())
        return self.sampler(params, num_data=self.posterior.num_data, seed=0, chain=0)

    def chains(self, numbers: Sequence[int], starts: Sequence[Weights], kind: type[Chains] | None = None) -> Chains:
        """Chains of these numbers at these weights."""
        if kind is None:
            kind = OneChain if self.plan.mode == "sequential" else StackedChains
        return kind(
            self.posterior,
            numbers,
            starts,
            self.batches,
            self.sampler,
            self.schedule,
            seed=self.plan.seed,
            autocast=None if self.plan.autocast is None else dtype_of(self.plan.autocast),
            accumulate=self.plan.accumulate,
            compiled=self.plan.compile,
            replicas=self.place.replicas,
        )

    def together(self, steps: Sequence[int]) -> list[list[int]]:
        """Which chains advance together, the n-th having made `steps[n]` steps: one, or all at the same step."""
        if self.plan.mode == "sequential":
            return [[n] for n in range(len(steps))]
        return [[n for n, at in enumerate(steps) if at == step] for step in sorted(set(steps))]

    def choose(self, mode: str, starts: Sequence[Weights]) -> tuple[str, str]:
        """The mode and, in a few words, why."""
        if mode not in ("auto", "vectorised", "sequential"):
            raise ValueError(f'mode={mode!r}: choose "auto", "vectorised" or "sequential".')
        if self.plan.chains == 1 or mode == "sequential":
            return "sequential", ""
        try:
            stacked, single = self._stacked(starts), self.chains([0], starts[:1], OneChain)
            together = _seconds_per_step(stacked)
        except (RuntimeError, ValueError) as error:
            if mode == "vectorised":
                raise ValueError(f'mode="vectorised" is not possible: {error} Write mode="sequential".') from error
            return "sequential", str(error).splitlines()[0]
        if mode == "vectorised":
            return mode, "as asked"
        apart = _seconds_per_step(single) * self.plan.chains
        why = f"a step of all chains takes {together:.1g} s together and {apart:.1g} s one after another"
        return ("vectorised" if together < apart else "sequential"), why

    def _stacked(self, starts: Sequence[Weights]) -> Chains:
        single = self.chains([0], starts[:1], OneChain)
        if not single.sampler.elementwise:
            raise ValueError(f"{type(single.sampler).__name__} does not treat weights one by one.")
        return self.chains(range(self.plan.chains), starts, StackedChains)


def _seconds_per_step(group: Chains) -> float:
    """The median time of a few steps, on weights that are thrown away."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        group.backward()
        group.advance()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[2]

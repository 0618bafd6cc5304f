"""The virial temperature in a loop of one's own: read before every tenth step of the sampler, from p.grad.

Burn-in is what is not recorded, so its length is known at the first record only. Until then the means of the weights
over blocks of 1, 2, 4, … steps are kept, the last four of them: when the first sample is recorded after n steps, the
block that ended between n/8 and n/4 is the point about which temperatures are read, as in `lv.sample`. With a recorder
that is made after burn-in, or a large model, that point is the weights at which it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core import sharding
from langevin.core.posterior import Posterior
from langevin.core.statistics import dot_of_difference
from langevin.samplers import Sampler

_EVERY = 10  # steps between readings
_AVERAGED = 5  # steps between weights that a mean takes in
_BLOCKS = 4
_LARGEST = 1 << 24  # bytes of a model, four copies of which are kept during burn-in


def can_read(sampler: Optimizer | None) -> bool:
    """Whether the temperature of what this moves can be read off single gradients."""
    if not isinstance(sampler, Sampler) or not sampler.injects_noise or sampler.needs_closure:
        return False
    plain = not any(sharding.is_sharded(p) for group in sampler.param_groups for p in group["params"])
    return plain and isinstance(sampler.param_groups[0]["chain"], int) and sampler.param_groups[0]["temperature"] > 0


def names_of(posterior: Posterior, sampler: Sampler) -> list[str] | None:
    """Of the parameters that a sampler moves, if they are the posterior's or, in their order, of another like it."""
    named = posterior.trainable_parameters()
    moved = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad]
    own = {id(p): name for name, p in named.items()}
    if {id(p) for p in moved} == set(own):
        return [own[id(p)] for p in moved]
    return list(named) if [p.shape for p in moved] == [p.shape for p in named.values()] else None


class LoopThermometer:
    """Readings of the tensors that a sampler moves, from the steps that it takes; `take()` gives their means."""

    _known: ClassVar[WeakKeyDictionary[Sampler, LoopThermometer]] = WeakKeyDictionary()

    @classmethod
    def of(cls, posterior: Posterior, sampler: Optimizer | None) -> LoopThermometer | None:
        """That of a sampler, which has one at most; None if its temperature can't be read."""
        if not can_read(sampler):
            return None
        assert isinstance(sampler, Sampler)
        if sampler not in cls._known and (names := names_of(posterior, sampler)) is not None:
            cls._known[sampler] = cls(sampler, names)
        return cls._known.get(sampler)

    def __init__(self, sampler: Sampler, names: Sequence[str]) -> None:
        self.params = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad]
        self._names, self._num_data = list(names), int(sampler.param_groups[0]["num_data"])
        self._anchor = [p.detach().clone() for p in self.params]
        self._keeps_blocks = sum(p.nbytes for p in self.params) <= _LARGEST
        self._blocks: dict[int, tuple[int, list[Tensor]]] = {}  # number → how many weights, their mean
        self._steps, self._taken, self._every, self._reads = 0, 0, _EVERY, False
        self._sums: Tensor | None = None
        self._count = 0
        sampler.register_step_pre_hook(self._before_step)

    def take(self) -> dict[str, float]:
        """The mean readings since the last call: "temperature", and "temperature/NAME" of each tensor."""
        self._every = max(1, min(_EVERY, self._steps - self._taken))  # so that every sample has a reading
        self._taken = self._steps
        if not self._reads:
            self._begin()
        if self._sums is None:
            return {}
        each = (self._num_data * self._sums / self._count).tolist()
        sizes = [p.numel() for p in self.params]
        self._sums, self._count = None, 0
        return {
            "temperature": sum(each) / sum(sizes),
            **{f"temperature/{n}": t / size for n, t, size in zip(self._names, each, sizes, strict=True)},
        }

    @torch.no_grad()
    def _before_step(self, sampler: Optimizer, args: Any, kwargs: Any) -> None:
        self._steps += 1
        if not self._reads:
            if self._keeps_blocks and self._steps % _AVERAGED == 0:
                self._average()
            return
        if self._steps % self._every == 0 and all(p.grad is not None for p in self.params):
            rows = [dot_of_difference(p, a, p.grad, 1).double() for p, a in zip(self.params, self._anchor, strict=True)]
            each = torch.stack(rows).flatten()
            self._sums = each if self._sums is None else self._sums + each
            self._count += 1

    def _average(self) -> None:
        """Take the weights into the mean of their block."""
        number = self._steps.bit_length()
        if number not in self._blocks:
            self._blocks[number] = 0, [torch.zeros_like(p) for p in self.params]
            self._blocks.pop(number - _BLOCKS, None)
        count, mean = self._blocks[number]
        torch._foreach_lerp_(mean, [p.detach() for p in self.params], 1 / (count + 1))
        self._blocks[number] = count + 1, mean

    def _begin(self) -> None:
        """Burn-in is over: from here on there are readings, about the mean of an early block."""
        self._reads, self._every = True, 1  # until it is known how often samples are recorded
        wanted = self._steps.bit_length() - _BLOCKS + 1
        if wanted in self._blocks:
            self._anchor = self._blocks[wanted][1]
        self._blocks = {}

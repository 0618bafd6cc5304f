"""Schedules of the learning rate: only what `torch.optim.lr_scheduler` lacks.

A schedule, as `sample(schedule=…)` takes it, is a function from a sampler to a torch scheduler:
`partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10_000)`, or one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler


@dataclass(frozen=True)
class cyclical:
    """Cosine cycles with warm restarts, lr_t = lr·½(1 + cos(π (t mod length)/length)) (Zhang et al. 2020).

    It is torch's `CosineAnnealingWarmRestarts` together with the knowledge of how long a cycle is, so that `sample`
    keeps the last iterate of every cycle unless `thin` says otherwise.
    """

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"cyclical({self.length}): a cycle takes at least one step.")

    def __call__(self, sampler: Optimizer) -> LRScheduler:
        """The torch scheduler that moves this sampler's lr."""
        return CosineAnnealingWarmRestarts(sampler, T_0=self.length)

"""Learning-rate schedules that `torch.optim.lr_scheduler` lacks.

The argument of `sample(schedule=…)` is a function from a sampler to a torch scheduler:
`partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10_000)`, or one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, LRScheduler

from langevin.core.arguments import validated_init


@validated_init()
@dataclass(frozen=True)
class cyclical:
    """Cosine cycles with warm restarts, lr_t = lr·½(1 + cos(π (t mod length)/length)) (Zhang et al. 2020).

    It is torch's `CosineAnnealingWarmRestarts` with a known cycle length, so that `sample` saves the last iterate of
    every cycle unless `thin` is given.
    """

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"cyclical({self.length}): a cycle takes at least one step.")

    def __call__(self, sampler: Optimizer) -> LRScheduler:
        """The torch scheduler of this sampler's lr."""
        return CosineAnnealingWarmRestarts(sampler, T_0=self.length)


@validated_init()
@dataclass(frozen=True)
class sawtooth:
    """Cycles in which the learning rate decreases linearly from lr, at the first step, to `low`, at the last.

    lr_t = lr + (low − lr)·(t mod length)/(length − 1) (Izmailov et al. 2018, with both bounds reached). Snapshots
    are taken at the end of a cycle, where steps are smallest; the jump in lr that follows decorrelates them.
    """

    length: int
    low: float

    def __post_init__(self) -> None:
        if self.length < 2 or not self.low > 0:
            raise ValueError(
                f"sawtooth(length={self.length}, low={self.low}): a cycle takes at least two steps, and low "
                f"must be positive."
            )

    def __call__(self, sampler: Optimizer) -> LRScheduler:
        """The torch scheduler of this optimizer's lr."""
        if any(group["lr"] < self.low for group in sampler.param_groups):
            rates = [group["lr"] for group in sampler.param_groups]
            raise ValueError(f"low={self.low} must not exceed the optimizer's lr={rates[0]}; give a smaller low.")
        return LambdaLR(sampler, [self._factor(group["lr"]) for group in sampler.param_groups])

    def _factor(self, lr: float) -> Callable[[int], float]:
        return lambda step: 1 + (self.low / lr - 1) * (step % self.length) / (self.length - 1)

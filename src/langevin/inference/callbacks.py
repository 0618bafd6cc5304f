"""What callbacks are told after every step, and the means of it that are stored with a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from langevin.inference.settings import RunSettings


@dataclass(frozen=True)
class StepInfo:
    """The state of the chains that advance together, after a step."""

    chains: list[int]
    step: int
    settings: RunSettings
    loss: list[float]  # of each chain
    lr: float
    saved: int  # samples that are stored, over all chains
    sampler: Optimizer  # or, in a fit, the optimizer
    weights: Callable[[int], dict[str, Tensor]]  # of the n-th of `chains`
    temperature: list[float] = field(default_factory=list)  # of each chain; empty where it was not measured


Callbacks = Sequence[Callable[[StepInfo], None]]


@dataclass
class RunningMeans:
    """Sums over the steps since the last sample of a chain; their means are stored with the next one."""

    loss: float = 0.0
    steps: int = 0
    temperature: float = 0.0
    readings: int = 0
    observed: dict[str, list[float]] = field(default_factory=dict)  # name → sum, count

    def take(self, name: str, value: float) -> None:
        """Take in a reading: the "loss" of a step, a "temperature", or anything else."""
        if name == "loss":
            self.loss += value
            self.steps += 1
            return
        if name == "temperature":
            self.temperature += value
            self.readings += 1
            return
        total, count = self.observed.get(name, [0.0, 0])
        self.observed[name] = [total + value, count + 1]

    def means(self, lr: float) -> dict[str, float]:
        """What is stored with a sample."""
        return {
            **{name: total / count for name, (total, count) in self.observed.items()},
            "loss": self.loss / max(self.steps, 1),
            "temperature": self.temperature / self.readings if self.readings else math.nan,
            "lr": lr,
        }

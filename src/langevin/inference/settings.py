"""What a run is to do, and what is noted while it does it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from langevin.samplers import Sampler


@dataclass(frozen=True)
class RunSettings:
    """What a run is to do; it stands in the manifest."""

    steps: int
    burn_in: int
    thin: int
    phase: int  # samples are taken when `thin` divides step − phase: the end of burn-in, or 0 for the ends of cycles
    chains: int
    seed: int
    batch_size: int | None
    mode: str  # "vectorised" or "sequential"
    freeze: bool
    accumulate: int
    autocast: str | None
    thermometer: bool = True  # whether the temperature is read; an optimum has none
    compile: bool = False

    def __post_init__(self) -> None:
        smallest = {"steps": 1, "burn_in": 0, "thin": 1, "chains": 1, "seed": 0, "accumulate": 1}
        for name, least in smallest.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer, {least} or more; given {name}={value!r}.")
        if self.burn_in >= self.steps:
            raise ValueError(
                f"burn_in={self.burn_in} leaves nothing of steps={self.steps}; steps counts all, burn-in included. "
                f"Write steps={self.burn_in + self.steps}."
            )
        if self.kept_per_chain() == 0:
            left = self.steps - self.burn_in
            raise ValueError(
                f"No sample would be kept: only {left} steps follow the burn-in. Write thin={left} or less."
            )

    def keeps(self, step: int) -> bool:
        """Whether the weights after that many steps are a sample."""
        return step > self.burn_in and (step - self.phase) % self.thin == 0

    def kept_per_chain(self) -> int:
        """How many samples each chain will have."""
        return (self.steps - self.phase) // self.thin - (self.burn_in - self.phase) // self.thin

    def averages(self, step: int) -> bool:
        """Whether the mean of the weights, about which the temperature is read, takes in this step."""
        return self.burn_in // 2 <= step < self.burn_in and self._reads(step)

    def reads_temperature(self, step: int) -> bool:
        """Whether the temperature is read at this step."""
        return step >= self.burn_in and self._reads(step)

    def _reads(self, step: int) -> bool:
        return self.thermometer and step % min(10, self.thin) == 0  # a reading costs a pass over the weights


@dataclass(frozen=True)
class StepInfo:
    """What a callback is told after every step."""

    chains: list[int]
    step: int
    plan: RunSettings
    loss: list[float]  # of each chain
    lr: float
    kept: int  # samples on the disk, over all chains
    sampler: Sampler
    weights: Callable[[int], dict[str, Tensor]]  # of the n-th of `chains`
    temperature: list[float] = field(default_factory=list)  # of each chain; empty where it was not read at this step


@dataclass
class RunningMeans:
    """Sums over the steps since the last sample of a chain."""

    loss: float = 0.0
    steps: int = 0
    heat: float = 0.0
    readings: int = 0
    observed: dict[str, list[float]] = field(default_factory=dict)  # name → sum, count

    def observe(self, name: str, value: float) -> None:
        """Take in a reading of anything else."""
        total, count = self.observed.get(name, [0.0, 0])
        self.observed[name] = [total + value, count + 1]

    def means(self, lr: float) -> dict[str, float]:
        """What is stored with a sample."""
        return {
            **{name: total / count for name, (total, count) in self.observed.items()},
            "loss": self.loss / max(self.steps, 1),
            "temperature": self.heat / self.readings if self.readings else math.nan,
            "lr": lr,
        }


@dataclass
class Cadence:
    """When a checkpoint is due."""

    steps: int | None
    seconds: float
    last: float = field(default_factory=time.monotonic)

    def due(self, step: int) -> bool:
        """Whether one is due after this step; if so, the clock starts anew."""
        if (self.steps and step % self.steps == 0) or time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            return True
        return False

"""What a run is to do: the numbers that stand in its manifest."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunSettings:
    """Steps, burn-in, thinning, chains and how they are computed."""

    steps: int
    burn_in: int
    thin: int  # 0, of an optimum only: no sample is saved
    phase: int  # samples are taken when `thin` divides step − phase: the end of burn-in, or 0 for the ends of cycles
    chains: int
    seed: int
    batch_size: int | str | None  # "full": all data in every step
    mode: str  # "vectorised" or "sequential"
    freeze: bool
    grad_accumulation_steps: int
    autocast: str | None
    measure_temperature: bool = True  # an optimum has none
    compile: bool = False
    probe_interval: int = 0  # steps between readings of the gradient thermometer; 0: none
    probe_size: int = 0  # examples of each
    temperatures: list[float] | None = None  # of the chains, in turn; the first is the target

    def __post_init__(self) -> None:
        smallest = {
            "steps": 1,
            "burn_in": 0,
            "thin": int(self.measure_temperature),
            "chains": 1,
            "seed": 0,
            "grad_accumulation_steps": 1,
        }
        for name, least in smallest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
                raise ValueError(f"{name} must be an integer, {least} or more; given {name}={value!r}.")
        if self.autocast not in (None, "bfloat16"):
            raise ValueError(
                f"autocast=torch.{self.autocast}: small gradients vanish in it unless they are scaled, and scaling "
                f"skips the steps that overflow, so that the chain no longer samples its target. Write "
                f"autocast=torch.bfloat16, which has the range of float32."
            )
        if self.burn_in >= self.steps:
            raise ValueError(
                f"burn_in={self.burn_in} leaves nothing of steps={self.steps}; steps counts all, burn-in included. "
                f"Write steps={self.burn_in + self.steps}."
            )
        if self.thin > 0 and self.samples_per_chain() == 0:
            left = self.steps - self.burn_in
            raise ValueError(
                f"No sample would be saved: only {left} steps follow the burn-in. Write thin={left} or less."
            )

    def temperature_of(self, chain: int) -> float | None:
        """The temperature of a chain, if chains have temperatures of their own."""
        return None if self.temperatures is None else self.temperatures[chain % len(self.temperatures)]

    def saves(self, step: int) -> bool:
        """Whether the weights after that many steps are a sample."""
        return self.thin > 0 and step > self.burn_in and (step - self.phase) % self.thin == 0

    def samples_per_chain(self) -> int:
        """How many samples each chain will have."""
        if self.thin == 0:
            return 0
        return (self.steps - self.phase) // self.thin - (self.burn_in - self.phase) // self.thin

    def averages(self, step: int) -> bool:
        """Whether the point about which the virial temperature is measured takes in the weights at this step."""
        return self.measure_temperature and self.burn_in // 8 <= step < self.burn_in // 4

    def measures_temperature(self, step: int) -> bool:
        """Whether the virial temperature is measured at this step; it costs a pass over the weights."""
        return self.measure_temperature and step >= self.burn_in and step % min(10, self.thin or 10) == 0

    def probes(self, step: int) -> bool:
        """Whether the gradient temperature is measured at this step; it costs several gradients."""
        sampled = step - self.burn_in
        return self.probe_interval > 0 and sampled >= 0 and sampled % self.probe_interval == self.probe_interval // 2


@dataclass
class CheckpointInterval:
    """When a checkpoint is due: every so many steps, and at least every so many seconds."""

    steps: int | None
    seconds: float
    last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise ValueError(f"checkpoint_steps={self.steps!r}: give an integer, 1 or more, or leave it out.")
        if not (isinstance(self.seconds, int | float) and self.seconds >= 0):
            raise ValueError(f"checkpoint_seconds={self.seconds!r}: give a number of seconds, such as 30.")

    def is_due(self, step: int) -> bool:
        """Whether one is due after this step; if so, the clock starts again."""
        if (self.steps and step % self.steps == 0) or time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            return True
        return False

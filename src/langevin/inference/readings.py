"""What steps measure: losses, temperatures, what samplers and probes show of themselves.

On the CPU they are read at once. On another device to read a number makes the host wait until the device has caught up,
so the measurements of many steps stay there, and are read together: before a sample is saved, at a checkpoint, for a
callback, and every hundred steps. Until then a loss that is not finite is not noticed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.errors import DivergenceError
from langevin.inference.callbacks import RunningMeans
from langevin.inference.chains import Chains
from langevin.inference.settings import RunSettings
from langevin.storage.base import SampleStore

INTERVAL = 100  # steps between readings on a device other than the CPU


class _Reading(NamedTuple):
    """Numbers of each chain, measured at a step."""

    step: int
    name: str  # "loss", "temperature", or anything else
    values: Tensor  # (chains,)


class Readings:
    """Measurements of a group of chains on their way into the means that are stored with samples."""

    def __init__(self, store: SampleStore, group: Chains, means: list[RunningMeans]) -> None:
        self.store, self.group, self.means = store, group, means
        self.losses = [math.nan] * len(group.numbers)  # the last ones that were read
        self.temperatures: list[float] = []  # of the last step that was read, if they were measured in it
        self._pending: list[_Reading] = []
        self._at_once = group.params[0].is_cpu

    def record(self, losses: Tensor, probed: Mapping[str, Tensor], settings: RunSettings) -> None:
        """The losses of this step and what was probed; now and then virial temperatures, which are measured here."""
        group = self.group
        if settings.averages(group.step):
            group.thermometer.average(group.params)
        self._add("loss", losses)
        for name, values in probed.items():
            self._add(name, values)
        if settings.measures_temperature(group.step):
            each = group.thermometer.measure_each(group.params)
            self._add("temperature", group.thermometer.over_all(each))
            for name, row in zip(group.names, each, strict=True):
                self._add(f"temperature/{name}", row)
            for name, values in group.observables().items():
                self._add(name, values)

    def _add(self, name: str, values: Tensor) -> None:
        step = self.group.step
        if self._at_once:
            self._take(step, name, values.reshape(-1).tolist())
        else:
            self._pending.append(_Reading(step, name, values.reshape(-1).double()))

    def read_if_due(self, due: bool) -> None:
        """Read if that is `due`, or at the interval; `group.step` is that after the last one."""
        if self._pending and (due or self.group.step % INTERVAL == 0):
            self.read()

    def read(self) -> None:
        """Read all that is still on the device, in one copy; raises if a loss is not finite."""
        pending, self._pending = self._pending, []
        if pending:
            rows = torch.stack([reading.values for reading in pending]).tolist()
            for reading, row in zip(pending, rows, strict=True):
                self._take(reading.step, reading.name, row)

    def _take(self, step: int, name: str, row: list[float]) -> None:
        if name == "loss":
            self.losses, self.temperatures = row, []
            for index, loss in enumerate(row):
                if not math.isfinite(loss):
                    self._refuse(index, loss, step)
        elif name == "temperature":
            self.temperatures = row
        for mean, value in zip(self.means, row, strict=True):
            mean.take(name, value)

    def _refuse(self, index: int, loss: float, step: int) -> None:
        if example := self.group.nonfinite_example(index, step):
            raise DivergenceError(f"Chain {self.group.numbers[index]}: the loss is {loss} at step {step}. {example}")
        raise DivergenceError(divergence(self.group, self.store, index, f"the loss is {loss}", step))

    def add_to_losses(self, rest: list[float]) -> None:
        """What the last losses lacked; where they are read at once."""
        for index, (mean, value) in enumerate(zip(self.means, rest, strict=True)):
            mean.loss += value
            self.losses[index] += value


def divergence(group: Chains, store: SampleStore, index: int, what: str, step: int | None = None) -> str:
    """What to say of a chain that diverged."""
    lost = group.nonfinite()
    which = f" No longer finite: {', '.join(lost[:3])}{'…' if len(lost) > 3 else ''}." if lost else ""
    kept = "" if store.path is None else f" Samples before it and the last good checkpoint are in {store.name}."
    return (
        f"Chain {group.numbers[index]}: {what} at step {group.step if step is None else step}, with "
        f"lr={group.lr():.3g}.{which}{kept} Sample again with a smaller lr; `langevin doctor` estimates the largest "
        f"stable one."
    )

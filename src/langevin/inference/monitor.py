"""What predictions do while chains move: a few numbers now and then, kept in checkpoints instead of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from langevin.inference.chains import Chains

Watched = list[float]  # the step, then what was watched


@dataclass
class Monitor:
    """Watches every `every` steps; `watch` maps weights stacked along a first axis to numbers of each set."""

    watch: Callable[[Mapping[str, Tensor]], list[list[float]]]
    every: int
    series: dict[int, list[Watched]] = field(default_factory=dict)  # by chain

    def is_due(self, step: int) -> bool:
        """Whether to watch after this step."""
        return step % self.every == 0

    def observe(self, group: Chains) -> None:
        """Watch these chains."""
        weights = {name: p.detach() for name, p in zip(group.names, group.params, strict=True)} | group.buffers
        stacked = weights if group.stacked else {name: t[None] for name, t in weights.items()}
        for chain, numbers in zip(group.numbers, self.watch(stacked), strict=True):
            self.series.setdefault(chain, []).append([float(group.step), *numbers])

    def restore(self, series: Mapping[int, list[Watched]]) -> None:
        """As a checkpoint has it."""
        self.series.update({chain: [list(row) for row in rows] for chain, rows in series.items()})

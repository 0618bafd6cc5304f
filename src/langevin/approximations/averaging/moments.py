"""Running mean, variance and last deviations of a sequence of named tensors, in one pass.

By Welford's recursion: a second moment minus a squared mean cancels catastrophically if the mean is large compared
to the standard deviation.

    n ← n + 1,   d = x − mean,   mean ← mean + d/n,   S ← S + d ⊙ (x − mean),   variance = S/n
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from langevin.approximations.distributions import Weights


class Moments:
    """Moments of named tensors, with the last `last` deviations x − mean, each from the mean that includes x."""

    def __init__(self, names: Iterable[str], last: int = 0) -> None:
        self.names = list(names)
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        self._last: deque[dict[str, Tensor]] = deque(maxlen=last)

    @torch.no_grad()
    def add(self, tensors: Weights) -> None:
        """Add one set of tensors; sums are in double precision."""
        if self.count == 0:
            self.mean = {name: torch.zeros_like(tensors[name], dtype=torch.float64) for name in self.names}
            self._squares = {name: torch.zeros_like(mean) for name, mean in self.mean.items()}
        self.count += 1
        after = {}
        for name in self.names:
            before = tensors[name] - self.mean[name]
            self.mean[name] += before / self.count
            after[name] = tensors[name] - self.mean[name]
            self._squares[name] += before * after[name]
        self._last.append(after)

    def variance(self, name: str) -> Tensor:
        """S/n, without Bessel's correction."""
        return self._squares[name] / self.count

    def deviations(self, name: str) -> Tensor:
        """The last deviations as columns, (…, last)."""
        return torch.stack([deviation[name] for deviation in self._last], dim=-1)

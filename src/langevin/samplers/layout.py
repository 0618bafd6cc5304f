"""Where a group's weights lie in the noise stream; and their update, compiled where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.core import random, sharding
from langevin.kernels import updates
from langevin.kernels.updates import Kernel, Table

Group = dict[str, Any]


class Layout:
    """Positions of a group's weights in the noise stream: unpadded, in the order of the parameters, row-major.

    `first` is the position of the group's first weight.
    """

    def __init__(self, group: Group, first: int) -> None:
        self.params: list[Tensor] = group["params"]
        self.chains: tuple[int, ...] = (group["chain"],) if isinstance(group["chain"], int) else group["chain"]
        self.sharded = sharding.any_sharded(self.params)
        self.first = first
        self._positions: dict[Tensor, int] = {}  # of the first weight here: of its shard, if it is sharded
        for p in self.params:
            self._positions[p] = first + (sharding.start(p) if self.sharded and sharding.is_sharded(p) else 0)
            first += p.numel() // len(self.chains)
        self.after = first
        self._tables: dict[tuple[int, ...], Table] = {}

    def draw(self, group: Group, params: Sequence[Tensor]) -> list[Tensor]:
        """η for these parameters: in logical order, whatever their layout in memory."""
        return [self._draw(group, p) for p in params]

    def _draw(self, group: Group, parameter: Tensor) -> Tensor:
        part = sharding.local(parameter)
        rows = torch.empty(len(self.chains), part.numel() // len(self.chains), dtype=part.dtype, device=part.device)
        for chain, row in zip(self.chains, rows, strict=True):
            where = {"chain": chain, "step": group["step"], "start": self._positions[parameter]}
            random.normal(row.numel(), seed=group["seed"], out=row, **where)
        return sharding.alike(rows, parameter) if sharding.is_sharded(parameter) else rows.view(parameter.shape)

    def run(
        self,
        kernel: Kernel,
        group: Group,
        params: Sequence[Tensor],
        state: Mapping[Tensor, Any],
        decays: Mapping[Tensor, float],
    ) -> tuple[list[Tensor], list[float]]:
        """Update the parameters that the kernel can take; returns the others, and ½ Σ decay θ² of each chain."""
        grads = [sharding.local(p.grad) for p in params]
        locals_ = sharding.locals_of(list(params))
        taken = [i for i, (p, g) in enumerate(zip(locals_, grads, strict=True)) if updates.applies(p, g)]
        taken = [i for i in taken if locals_[i].dtype == locals_[taken[0]].dtype]
        states = [[sharding.local(state[params[i]][name]) for i in taken] for name in kernel.state]
        if not all(t.is_contiguous() and t.dtype == locals_[taken[0]].dtype for each in states for t in each):
            taken = []
        if not taken:
            return list(params), []
        key = tuple(id(params[i]) for i in taken)
        if key not in self._tables:
            positions = [self._positions[params[i]] for i in taken]
            self._tables[key] = Table([locals_[i] for i in taken], positions, self.chains)
        energies = self._tables[key].run(
            kernel,
            [[locals_[i] for i in taken], [grads[i] for i in taken], *states],
            (group["seed"], group["step"], random.Stream.INJECTED),
            noisy=group.get("temperature", 0.0) > 0,
            decays=[decays.get(params[i], 0.0) for i in taken] if decays else None,
        )
        left = [] if len(taken) == len(params) else [p for i, p in enumerate(params) if i not in set(taken)]
        return left, energies.tolist()

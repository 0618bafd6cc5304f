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
        self._tables: dict[tuple[int, ...], Any] = {}
        self._decays: tuple[Any, Any, list[float]] = (None, None, [])

    def draw(self, group: Group, params: Sequence[Tensor]) -> list[Tensor]:
        """η for these parameters: in logical order, whatever their layout in memory."""
        on_cpu = params[0].is_cpu and not isinstance(group["step"], Tensor)
        if on_cpu or self.sharded or len({(p.dtype, p.device) for p in params}) > 1:
            return [self._draw(group, p) for p in params]
        return self._draw_together(group, params)

    def _draw(self, group: Group, parameter: Tensor) -> Tensor:
        part = sharding.local(parameter)
        rows = torch.empty(len(self.chains), part.numel() // len(self.chains), dtype=part.dtype, device=part.device)
        where = {"chains": self.chains, "step": group["step"], "start": self._positions[parameter]}
        random.normal_rows(rows, seed=group["seed"], **where)
        return sharding.alike(rows, parameter) if sharding.is_sharded(parameter) else rows.view(parameter.shape)

    def _draw_together(self, group: Group, params: Sequence[Tensor]) -> list[Tensor]:
        """In one piece: on a GPU every call costs its launch, however small the tensor is."""
        first, size = self._positions[params[0]], len(self.chains)
        starts = [self._positions[p] - first for p in params]
        whole = torch.empty(
            size, starts[-1] + params[-1].numel() // size, dtype=params[0].dtype, device=params[0].device
        )
        random.normal_rows(whole, seed=group["seed"], chains=self.chains, step=group["step"], start=first)
        rows = [whole[:, start : start + p.numel() // size] for start, p in zip(starts, params, strict=True)]
        return [row.reshape(p.shape) for row, p in zip(rows, params, strict=True)]

    def _listed(self, decays: Mapping[Tensor, float], key: Any, params: Sequence[Tensor]) -> list[float]:
        """The decays in the order of the parameters: the same object until they change."""
        if self._decays[0] is not decays or self._decays[1] != key:
            self._decays = decays, key, [decays.get(p, 0.0) for p in params]
        return self._decays[2]

    def run(
        self,
        kernel: Kernel,
        group: Group,
        params: Sequence[Tensor],
        state: Mapping[Tensor, Any],
        decays: Mapping[Tensor, float],
    ) -> tuple[list[Tensor], list[float]]:
        """Update the parameters that the kernel can take; returns the others, and ½ Σ decay θ² of each chain."""
        like = params[0]
        states = [state[p] for p in params]
        roles = [params, [p.grad for p in params], *([s[name] for s in states] for name in kernel.state)]
        tensors = [list(map(sharding.local, each)) for each in roles] if self.sharded else roles
        left: list[Tensor] = []
        if not all(updates.applies(t, like) for each in tensors for t in each):
            fits = [all(updates.applies(t, like) for t in each) for each in zip(*tensors, strict=True)]
            left = [p for p, fit in zip(params, fits, strict=True) if not fit]
            params = [p for p, fit in zip(params, fits, strict=True) if fit]
            tensors = [[t for t, fit in zip(each, fits, strict=True) if fit] for each in tensors]
        if not params:
            return left, []
        key = tuple(map(id, params))
        if key not in self._tables:
            self._tables[key] = updates.make_table(tensors[0], [self._positions[p] for p in params], self.chains)
        where, noisy = (group["seed"], group["step"], random.Stream.INJECTED), group.get("temperature", 0.0) > 0
        energies: list[float] = []
        if isinstance(self._tables[key], Table):
            listed = self._listed(decays, key, params) if decays else None
            energies = self._tables[key].run(kernel, tensors, where, noisy, listed).tolist()
        else:
            self._tables[key].run(kernel, tensors, where, noisy)
        if kernel.counter is not None:
            for p in params:
                state[p][kernel.counter] = state[p].get(kernel.counter, 0) + 1
        return left, energies

"""What stands between samplers and the compiled updates: which tensors they take, and the table that they read.

A sampler declares its compiled update as a `Kernel` (`Sampler.kernel`), for the CPU (Numba) and for GPUs (Triton, where
it is installed) at once; everything else is here. A tensor is taken if it lies on one of these and parameter, gradient
and state are contiguous and of the same precision. All others take the sampler's `update` in torch operations, with the
same numbers from the noise stream.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from langevin.kernels.cache import announced
from langevin.kernels.threads import each_piece

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_THETA = 6  # the first column of addresses, see `native_updates`
_enabled = os.environ.get("LANGEVIN_KERNELS", "1") != "0"
_compiled: set[tuple[str, torch.dtype]] = set()
_TRITON = {"cuda"}  # kinds of devices that Triton compiles for


@dataclass(frozen=True)
class Kernel:
    """A compiled update: its name in `native_updates` and `triton_kernels`, its settings, the tensors in its state.

    `counter` names a number in the state of each parameter that counts the updates.
    """

    name: str
    settings: tuple[float, ...]
    state: tuple[str, ...] = ()
    counter: str | None = None


def enabled() -> bool:
    """Whether compiled updates are used where they apply; `LANGEVIN_KERNELS=0` turns them off."""
    return _enabled


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Use compiled updates, or not, inside."""
    global _enabled
    before, _enabled = _enabled, on
    try:
        yield
    finally:
        _enabled = before


class Table:
    """The rows of an update, one for each tensor of each chain, and where their weights are.

    Args:
        params: the parameters, all of one precision; stacked ones have a leading axis of `chains`.
        positions: number of each parameter's first weight in the noise stream of its chain.
        chains: the number of each chain.
    """

    def __init__(self, params: Sequence[Tensor], positions: Sequence[int], chains: Sequence[int]) -> None:
        self.dtype = params[0].dtype
        sizes = np.array([p.numel() // len(chains) for p in params], np.int64)
        rows = len(chains) * len(params)
        self._table = np.zeros((rows, _THETA + 4), np.int64)
        self._tensor = np.tile(np.arange(len(params)), len(chains))  # the parameter of each row
        row = np.repeat(np.arange(len(chains)), len(params))
        self._table[:, 0] = sizes[self._tensor]
        self._table[:, 1] = np.array(chains, np.int64)[row]
        self._table[:, 2] = row
        self._table[:, 3] = np.array(positions, np.int64)[self._tensor]
        self._table[:, 4] = np.cumsum(self._table[:, 0]) - self._table[:, 0]
        self._table[:, 5] = max(int(p) + int(s) for p, s in zip(positions, sizes, strict=True))
        self._shift = (row * self._table[:, 0] * params[0].element_size())[:, None]
        self._addresses: list[int] = []
        self._decays = np.zeros(rows)
        self._given: Any = None  # the decays of the last time
        self.total, self.chains = int(self._table[:, 0].sum()), len(chains)

    def run(
        self,
        kernel: Kernel,
        tensors: Sequence[Sequence[Tensor]],
        where: tuple[int, int, int],
        noisy: bool,
        decays: Sequence[float] | None = None,
    ) -> Any:
        """Update all weights; `tensors` are the parameters, their gradients, and their states.

        `where`: seed, step, stream of the noise. Returns ½ Σ decay θ² of each chain, before the update.
        """
        from langevin.kernels import native_updates

        table = self._table
        addresses = [t.data_ptr() for each in tensors for t in each]
        if addresses != self._addresses:  # gradients often lie where the last ones were
            self._addresses = addresses
            columns = np.array(addresses, np.int64).reshape(len(tensors), -1).T
            table[:, _THETA : _THETA + len(tensors)] = columns[self._tensor] + self._shift
            table[:, _THETA + len(tensors) :] = table[:, _THETA : _THETA + 1]
        if decays is not self._given:
            self._given = decays
            self._decays[:] = 0 if decays is None else np.array(decays)[self._tensor]
        settings = np.array(kernel.settings, _NUMPY[self.dtype])
        words = np.array(where, np.uint64)
        update = getattr(native_updates, kernel.name)
        energies = {}

        def work(start: int, stop: int) -> None:
            energies[start] = np.zeros(self.chains)
            update(table, self._decays, start, stop, settings, words, noisy, energies[start])

        if (kernel.name, self.dtype) in _compiled:
            each_piece(work, self.total)
        else:
            with announced(f"the update {kernel.name!r}", f"{kernel.name}-{settings.dtype}"):
                work(0, 0)
            each_piece(work, self.total)
            _compiled.add((kernel.name, self.dtype))
        increment_version([t for k, each in enumerate(tensors) if k != 1 for t in each])  # NumPy's writes do not count
        return sum(energies[start] for start in sorted(energies))  # in order: sums do not depend on the threads


def uses_triton(device: torch.device) -> bool:
    """Whether Triton's kernels are used on a device."""
    return device.type in _TRITON and _enabled and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def make_table(params: Sequence[Tensor], positions: Sequence[int], chains: Sequence[int]) -> Any:
    """The table for the device that the parameters are on."""
    if not uses_triton(params[0].device):
        return Table(params, positions, chains)
    from langevin.kernels.triton_kernels import Programs

    return Programs(params, positions, chains)


def applies(tensor: Tensor, like: Tensor) -> bool:
    """Whether a compiled update in the precision and on the device of a parameter can take a tensor."""
    if tensor.dtype != like.dtype or like.dtype not in _NUMPY or not tensor.is_contiguous():
        return False
    return (tensor.is_cpu and like.is_cpu) or (tensor.device == like.device and uses_triton(tensor.device))

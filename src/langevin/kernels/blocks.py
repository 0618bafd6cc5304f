"""Element-wise updates in blocks of an efficient size.

The cost of an update of a few dozen operations is the number of calls for small tensors and the memory traffic for
large ones. So small tensors are concatenated, and each operation is called once for all of them; large ones are split,
and intermediate results stay in the processor's cache. A compiled update writes no intermediate results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIZE = 1 << 15  # elements per block: above this size torch uses several threads, which then wait for each other


class _Buffer(NamedTuple):
    """Memory for concatenated tensors."""

    owner: Tensor  # a reference, so that its id is not reused
    flat: Tensor
    views: list[Tensor]  # of `flat`, in the shapes of the original tensors


class Blocks:
    """Splits large tensors and concatenates small ones; reuses its buffers from step to step."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int, int], _Buffer] = {}
        self._compiled: dict[Callable[..., None], Callable[..., None]] | None = None

    def compile(self) -> None:
        """Fuse every update with `torch.compile` from now on: one pass over memory, nothing is split."""
        self._compiled = {} if self._compiled is None else self._compiled

    def each(
        self,
        update: Callable[..., None],
        changed: Sequence[list[Tensor]],
        read: Sequence[list[Tensor]],
        *settings: Any,
    ) -> None:
        """Call update(*settings, *block) with every block.

        `update` must not be a closure. If it is compiled, floats among the settings are passed as tensors, so that a
        new learning rate does not trigger a recompilation.
        """
        if self._compiled is not None:
            update, settings = self._fused(update, settings)
        for block in self.of(changed, read):
            update(*settings, *[part.detach() for part in block])

    def each_list(
        self,
        update: Callable[..., None],
        changed: Sequence[list[Tensor]],
        read: Sequence[list[Tensor]],
        *settings: Any,
    ) -> None:
        """The same for short updates, written with `torch._foreach_…`: small tensors are not concatenated."""
        if self._compiled is not None:
            update, settings = self._fused(update, settings)
            for block in self.of(changed, read):
                update(*settings, *[[part.detach()] for part in block])
            return
        lists = [*changed, *read]
        small = [i for i, tensor in enumerate(lists[0]) if tensor.numel() < SIZE]
        if small:
            update(*settings, *[[each[i] for i in small] for each in lists])
        for i, tensor in enumerate(lists[0]):
            if tensor.numel() >= SIZE:
                for parts in _split([each[i] for each in lists], whole=False):
                    update(*settings, *[[part] for part in parts])

    def _fused(self, update: Callable[..., None], settings: tuple[Any, ...]) -> tuple[Callable[..., None], Any]:
        assert self._compiled is not None
        if update not in self._compiled:
            self._compiled[update] = torch.compile(update, dynamic=True)
        tensors = (torch.tensor(s, dtype=torch.float64) if isinstance(s, float) else s for s in settings)
        return self._compiled[update], tuple(tensors)

    def of(self, changed: Sequence[list[Tensor]], read: Sequence[list[Tensor]]) -> Iterator[list[Tensor]]:
        """Blocks: the same range of every list, first of those in `changed`, then of those in `read`.

        In-place operations on a block of a changed list act on its tensors.
        """
        small: list[int] = []
        count = 0
        for i, tensor in enumerate(changed[0]):
            if tensor.numel() >= SIZE:
                yield from _split([each[i] for each in (*changed, *read)], whole=self._compiled is not None)
                continue
            if small and (count >= SIZE or not _alike(tensor, changed[0][small[0]])):
                yield from self._concatenated(changed, read, small)
                small, count = [], 0
            small.append(i)
            count += tensor.numel()
        if small:
            yield from self._concatenated(changed, read, small)

    def _concatenated(
        self, changed: Sequence[list[Tensor]], read: Sequence[list[Tensor]], which: list[int]
    ) -> Iterator[list[Tensor]]:
        lists = [[each[i] for i in which] for each in (*changed, *read)]
        if len(which) == 1:
            yield [each[0] for each in lists]
            return
        buffers = [self._buffer(lists[0][0], slot, each) for slot, each in enumerate(lists)]
        for buffer, each in zip(buffers, lists, strict=True):
            torch._foreach_copy_(buffer.views, each)
        yield [buffer.flat for buffer in buffers]
        for buffer, each in zip(buffers, lists[: len(changed)], strict=False):
            torch._foreach_copy_(each, buffer.views)

    def _buffer(self, owner: Tensor, slot: int, tensors: list[Tensor]) -> _Buffer:
        key = (id(owner), len(tensors), slot)
        if key not in self._buffers or [v.shape for v in self._buffers[key].views] != [t.shape for t in tensors]:
            sizes = [t.numel() for t in tensors]
            flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
            views = [part.view(t.shape) for part, t in zip(torch.split(flat, sizes), tensors, strict=True)]
            self._buffers[key] = _Buffer(owner, flat, views)
        return self._buffers[key]


def add_scaled(x: Tensor, y: Tensor, scale: float | Tensor) -> None:
    """x ← x + scale · y, in one operation if the scale is a number."""
    if isinstance(scale, Tensor):
        x.add_(y * scale)
    else:
        x.add_(y, alpha=scale)


def add_ratios(x: list[Tensor], y: list[Tensor], z: list[Tensor] | tuple[Tensor, ...], scale: float | Tensor) -> None:
    """x ← x + scale · y/z of lists, likewise."""
    if isinstance(scale, Tensor):
        torch._foreach_add_(x, [a / b * scale for a, b in zip(y, z, strict=True)])
    else:
        torch._foreach_addcdiv_(x, y, z, value=scale)


def add_products(x: list[Tensor], y: list[Tensor], z: list[Tensor], scale: float | Tensor) -> None:
    """x ← x + scale · y·z of lists, likewise."""
    if isinstance(scale, Tensor):
        torch._foreach_add_(x, [a * b * scale for a, b in zip(y, z, strict=True)])
    else:
        torch._foreach_addcmul_(x, y, z, value=scale)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device


def _split(tensors: list[Tensor], whole: bool) -> Iterator[list[Tensor]]:
    """Ranges of tensors of equal size; tensors that are not contiguous are not split."""
    if not all(t.is_contiguous() for t in tensors):
        yield tensors
    elif whole:
        yield [t.view(-1) for t in tensors]
    else:
        for parts in zip(*[torch.split(t.view(-1), SIZE) for t in tensors], strict=True):
            yield list(parts)

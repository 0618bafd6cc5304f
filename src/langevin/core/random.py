"""Counter-based randomness: every draw is a pure function of integers.

Philox (Salmon et al. 2011) turns a key and a counter into random bits with nothing remembered in between. Here

    key     = (seed, chain)
    counter = (running index, block, step, stream)

so that what is drawn at step t of chain c does not depend on which chains, processes or shards run beside it, nor on
whether the run was interrupted before. A stream is an endless sequence of numbers; `normal` and `rademacher` return
any stretch of it.

Normal deviates are filled in blocks of `BLOCK` numbers: Philox gives the starting state of torch's vectorised
generator (on the CPU a Mersenne twister, all of its 624 words, since its own seed has only 32 bits), and that fills the
block; several threads fill several blocks. Random signs are Philox's own bits, 64 to a word, and several times faster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 16
_SIGNS = 1 << 63  # the block from which signs are taken; normal deviates do not reach it
_LANES = 16  # torch fills normals 16 at a time: a shorter fill is the start of a longer one if both are multiples


class Stream(IntEnum):
    """What a random number is for; uses never share numbers."""

    INJECTED = 0
    BATCH = 1
    FORWARD = 2  # random transforms of the data, and dropout where it was allowed
    LABELS = 3  # sampled from the model, for its Fisher information
    FISHER = 4  # the Fisher's own mini-batch
    DRAWS = 5  # weights from a fitted distribution; the step is the number of the draw


class _Engine(threading.local):
    """The two generators that are set anew before every use; one pair a thread, so none is ever shared."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.numbers = np.random.Generator(self.philox)
        self._philox_state = self.philox.state
        self.twister = torch.Generator()
        self._twister_state = self.twister.get_state()
        self._twister_words = self._twister_state.numpy().view(np.uint64)[3:627]

    def set(self, seed: int, chain: int, step: int, stream: int, block: int = 0, index: int = 0) -> None:
        state = self._philox_state
        state["state"]["key"][:] = (seed, chain)
        state["state"]["counter"][:] = (index, block, step, stream)
        state["buffer_pos"] = 4  # nothing buffered
        state["has_uint32"] = 0
        self.philox.state = state

    def seeded_twister(self) -> torch.Generator:
        self._twister_words[:] = self.philox.random_raw(312).view(np.uint32)
        self.twister.set_state(self._twister_state)
        return self.twister


_engine = _Engine()


def normal(
    count: int,
    *,
    seed: int,
    chain: int,
    step: int,
    start: int = 0,
    stream: int = Stream.INJECTED,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    out: Tensor | None = None,
) -> Tensor:
    """Numbers `start` to `start + count` of a stream of standard normal deviates, written to `out` if it is given.

    >>> whole = normal(100, seed=1, chain=0, step=5)
    >>> bool((normal(30, seed=1, chain=0, step=5, start=70) == whole[70:]).all())
    True
    """
    if out is None:
        out = torch.empty(count, dtype=dtype, device=device)
    where = seed, chain, step, stream
    first, last = start // BLOCK, (start + count - 1) // BLOCK
    if first == last:
        skipped = start - first * BLOCK
        return out.copy_(_block(skipped + count, where, first, out.dtype, out.device)[skipped:])

    def fill(block: int) -> None:
        begin, end = max(start, block * BLOCK), min(start + count, (block + 1) * BLOCK)
        piece = out[begin - start : end - start]
        if end - begin == BLOCK and out.is_cpu:
            piece.normal_(generator=_twister(*where, block))
        else:
            piece.copy_(_block(end - block * BLOCK, where, block, out.dtype, out.device)[begin - block * BLOCK :])

    threads = torch.get_num_threads() if out.is_cpu else 1
    each = map if threads == 1 else _threads(os.getpid(), threads).map
    list(each(fill, range(first, last + 1)))
    return out


def rademacher(
    count: int,
    *,
    seed: int,
    chain: int,
    step: int,
    start: int = 0,
    stream: int = Stream.INJECTED,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    out: Tensor | None = None,
) -> Tensor:
    """Numbers `start` to `start + count` of a stream of random signs, −1 and 1, written to `out` if it is given.

    Their first three moments are those of normal deviates, so in a Langevin step they keep weak order one (Milstein &
    Tretyakov 2004, "Stochastic numerics for mathematical physics"); the fourth is 1 in place of 3. They are the same
    numbers on every device.

    >>> rademacher(8, seed=1, chain=0, step=5).tolist()
    [-1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    """
    if out is None:
        out = torch.empty(count, dtype=dtype, device=device)
    first, skipped = divmod(start, 256)  # a counter gives four words of 64 bits
    _engine.set(seed, chain, step, stream, _SIGNS, first)
    words = _engine.philox.random_raw(-(-(skipped + count) // 64))
    octets = torch.from_numpy(words.astype("<u8", copy=False).view(np.uint8)).to(out.device).int()
    signs = _signs_of_octets(out.dtype, out.device)
    if skipped % 8:
        out.copy_(signs.index_select(0, octets).flatten()[skipped : skipped + count])
        return out
    octets, whole = octets[skipped // 8 :], count - count % 8
    if whole:
        torch.index_select(signs, 0, octets[: whole // 8], out=out[:whole].view(-1, 8))
    if count > whole:
        out[whole:] = signs[octets[whole // 8]][: count - whole]
    return out


NOISES: dict[str, Callable[..., Tensor]] = {"gaussian": normal, "rademacher": rademacher}


@cache
def _signs_of_octets(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Row b has the signs that the bits of b stand for, the lowest first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (torch.from_numpy(bits).to(dtype) * 2 - 1).to(device)


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """A forked process has none of its parent's threads, and gets its own."""
    return ThreadPoolExecutor(count, thread_name_prefix="langevin-noise")


def _twister(seed: int, chain: int, step: int, stream: int, block: int) -> torch.Generator:
    _engine.set(seed, chain, step, stream, block)
    return _engine.seeded_twister()


def _block(
    count: int, where: tuple[int, int, int, int], block: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The first `count` numbers of a block."""
    if device.type == "cpu":
        generator, padded = _twister(*where, block), -(-count // _LANES) * _LANES
    else:  # the generators of accelerators are counter-based themselves and take 64 bits; only whole blocks are alike
        _engine.set(*where, block)
        generator, padded = torch.Generator(device).manual_seed(int(_engine.philox.random_raw()) >> 1), BLOCK
    return torch.empty(padded, dtype=dtype, device=device).normal_(generator=generator)[:count]


def random_subset(num_data: int, size: int, *, seed: int, chain: int, step: int, stream: int = Stream.BATCH) -> Tensor:
    """The mini-batch of a step: `size` of `num_data` indices without replacement, independent from step to step."""
    if size >= num_data:
        return torch.arange(num_data)
    _engine.set(seed, chain, step, stream)
    return torch.from_numpy(_engine.numbers.choice(num_data, size, replace=False, shuffle=False))


def integer(*, seed: int, chain: int, step: int, stream: int = Stream.FORWARD, block: int = 0) -> int:
    """A 63-bit integer, to seed generators that are not ours (`torch.manual_seed`)."""
    _engine.set(seed, chain, step, stream, block)
    return int(_engine.philox.random_raw()) >> 1


def generator(*, seed: int, chain: int, step: int, stream: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for draws that are neither normal numbers nor batches."""
    return torch.Generator(device).manual_seed(integer(seed=seed, chain=chain, step=step, stream=stream))

"""Counter-based randomness: every draw is a pure function of integers.

Philox (Salmon et al. 2011) maps a key and a counter to random bits, without a state. Here

    key     = (seed, chain)
    counter = (running index, block, step, stream)

so that what is drawn at step t of chain c does not depend on which other chains, processes or shards run, nor on
whether the run was interrupted before. A stream is an infinite sequence of numbers; `normal` and `rademacher` return
any contiguous range of it.

Normal deviates are generated in blocks of `BLOCK` numbers: Philox gives the initial state of torch's vectorised
generator (on the CPU a Mersenne twister; all of its 624 words, since its seed has only 32 bits), which fills the block;
several threads fill several blocks. Random signs are the bits of Philox, 64 per word, and several times faster.
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
_SIGNS = 1 << 63  # the block of the signs; normal deviates never reach it
_LANES = 16  # torch fills normals 16 at a time: of two fills of multiples of 16, the shorter is a prefix of the longer


class Stream(IntEnum):
    """What a random number is used for; different streams share no numbers."""

    INJECTED = 0
    BATCH = 1
    FORWARD = 2  # random transforms of the data, and dropout if allowed
    LABELS = 3  # sampled from the model, for its Fisher information
    FISHER = 4  # the Fisher's own mini-batch
    DRAWS = 5  # weights from a fitted distribution; the step is the number of the draw


class _Engine(threading.local):
    """The two generators, whose state is set before every use; one pair per thread, never shared."""

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
    """Numbers `start` to `start + count` of a stream of standard normal deviates, written to `out` if given.

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
        part = out[begin - start : end - start]
        if end - begin == BLOCK and out.is_cpu:
            part.normal_(generator=_twister(*where, block))
        else:
            part.copy_(_block(end - block * BLOCK, where, block, out.dtype, out.device)[begin - block * BLOCK :])

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
    """Numbers `start` to `start + count` of a stream of random signs, −1 and 1, written to `out` if given.

    Their first three moments are those of normal deviates, so in a Langevin step they keep weak order one (Milstein &
    Tretyakov 2004, "Stochastic numerics for mathematical physics"); the fourth is 1 instead of 3. They are the same
    on every device.

    >>> rademacher(8, seed=1, chain=0, step=5).tolist()
    [-1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    """
    if out is None:
        out = torch.empty(count, dtype=dtype, device=device)
    first, skipped = divmod(start, 256)  # one counter value gives four words of 64 bits
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
    """Row b contains the bits of b as signs, least significant bit first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (torch.from_numpy(bits).to(dtype) * 2 - 1).to(device)


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """A pool of threads per process: a forked process does not inherit its parent's threads."""
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
    else:  # generators of accelerators are counter-based and take 64 bits; only full blocks are reproducible
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
    """A 63-bit integer, to seed other generators (`torch.manual_seed`)."""
    _engine.set(seed, chain, step, stream, block)
    return int(_engine.philox.random_raw()) >> 1


def generator(*, seed: int, chain: int, step: int, stream: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for all other draws."""
    return torch.Generator(device).manual_seed(integer(seed=seed, chain=chain, step=step, stream=stream))

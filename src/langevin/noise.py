"""Counter-based randomness: every draw is a pure function of integers.

Philox (Salmon et al. 2011) turns a key and a counter into random bits with nothing remembered in between. Here

    key     = (seed, chain)
    counter = (running index, block, step, stream)

so that what is drawn at step t of chain c does not depend on which chains, processes or shards run beside it, nor on
whether the run was interrupted before. A stream is an endless sequence of numbers; `normal` returns any stretch of it.
It is filled in blocks of `BLOCK` numbers: Philox gives the starting state of torch's vectorised generator (on the CPU
a Mersenne twister, all of its 624 words, since its own seed has only 32 bits), and that fills the block.
"""

from __future__ import annotations

import threading
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 16
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

    def set(self, seed: int, chain: int, step: int, stream: int, block: int = 0) -> None:
        state = self._philox_state
        state["state"]["key"][:] = (seed, chain)
        state["state"]["counter"][:] = (0, block, step, stream)
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
) -> Tensor:
    """Numbers `start` to `start + count` of a stream of standard normal deviates.

    >>> whole = normal(100, seed=1, chain=0, step=5)
    >>> bool((normal(30, seed=1, chain=0, step=5, start=70) == whole[70:]).all())
    True
    """
    device = torch.device(device)
    out = torch.empty(count, dtype=dtype, device=device)
    filled = 0
    while filled < count:
        block, skipped = divmod(start + filled, BLOCK)
        taken = min(BLOCK - skipped, count - filled)
        numbers = _block(skipped + taken, seed, chain, step, stream, block, dtype, device)
        out[filled : filled + taken] = numbers[skipped:]
        filled += taken
    return out


def _block(
    count: int, seed: int, chain: int, step: int, stream: int, block: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The first `count` numbers of a block."""
    _engine.set(seed, chain, step, stream, block)
    if device.type == "cpu":
        generator = _engine.seeded_twister()
    else:  # the generators of accelerators are counter-based themselves and take 64 bits
        generator = torch.Generator(device).manual_seed(int(_engine.philox.random_raw()) >> 1)
    padded = -(-count // _LANES) * _LANES if device.type == "cpu" else BLOCK  # elsewhere only whole blocks are alike
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

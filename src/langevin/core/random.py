"""Counter-based randomness: every draw is a pure function of integers.

What is drawn at step t of chain c does not depend on which other chains, processes, shards or threads run, nor on
whether the run was interrupted before. A stream is a sequence of numbers, and `normal` returns any contiguous range of
it; `langevin.kernels.philox` says which number is which. On the CPU the numbers are drawn by compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.kernels import philox
from langevin.kernels.cache import announced
from langevin.kernels.threads import PIECE, each_piece

_ready: dict[tuple[str, type], Any] = {}


class Stream(IntEnum):
    """What a random number is used for; different streams share no numbers."""

    INJECTED = 0
    BATCH = 1
    FORWARD = 2  # random transforms of the data, and dropout if allowed
    LABELS = 3  # sampled from the model, for its Fisher information
    FISHER = 4  # the Fisher's own mini-batch
    DRAWS = 5  # weights from a fitted distribution; the step is the number of the draw
    START = 6  # the weights at which a chain starts
    PROBE = 7  # mini-batches of the gradient thermometer
    SIGNS = 8  # its random directions
    MOMENTUM = 9  # at the start
    ACCEPT = 10  # Metropolis tests, and lengths of trajectories
    SPLIT = 11  # which data are held out, and the seeds of stages
    PRIOR = 12  # precisions of priors


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
    philox.check(seed=seed, chain=chain, step=step, stream=stream)
    philox.check_range(start, count, out.dtype)
    if not (out.is_cpu and out.is_contiguous()):
        where = {"seed": seed, "chain": chain, "step": step, "stream": stream, "start": start}
        return out.copy_(philox.normals(count, **where, dtype=out.dtype, device=out.device))
    numbers, key = out.detach().numpy(), np.array([seed, step, stream], np.uint64)
    fill = _native("normals", numbers.dtype.type)
    each_piece(lambda first, last: fill(numbers[first:last], start + first, chain, key), count)
    return out


def normal_rows(out: Tensor, *, seed: int, chains: Sequence[int], step: int, stream: int = Stream.INJECTED) -> Tensor:
    """Fill each row of `out` with the first numbers of its chain's stream.

    >>> rows = normal_rows(torch.empty(2, 5), seed=1, chains=[0, 3], step=7)
    >>> bool((rows[1] == normal(5, seed=1, chain=3, step=7)).all())
    True
    """
    if not (out.is_cpu and out.is_contiguous()) or out.shape[1] > PIECE:
        for chain, row in zip(chains, out, strict=True):
            normal(len(row), seed=seed, chain=chain, step=step, stream=stream, out=row)
        return out
    philox.check(seed=seed, chain=max(chains), step=step, stream=stream)
    rows, key = out.detach().numpy(), np.array([seed, step, stream], np.uint64)
    fill = _native("normals", rows.dtype.type)
    for chain, row in zip(chains, rows, strict=True):
        fill(row, 0, chain, key)
    return out


def random_subset(
    num_data: int, size: int, *, seed: int, chain: int | Sequence[int], step: int, stream: int = Stream.BATCH
) -> Tensor:
    """The mini-batch of a step: `size` of `num_data` indices without replacement, independent from step to step.

    Of several chains, one row each.

    >>> both = random_subset(10, 3, seed=1, chain=[0, 1], step=5)
    >>> bool((both[1] == random_subset(10, 3, seed=1, chain=1, step=5)).all())
    True
    """
    chains = [chain] if isinstance(chain, int) else list(chain)
    philox.check(seed=seed, chain=max(chains), step=step, stream=stream)
    if size >= num_data:
        return torch.arange(num_data).repeat(len(chains), 1)[0 if isinstance(chain, int) else slice(None)]
    rows = np.empty((len(chains), size), np.int64)
    _native("subsets")(rows, num_data, np.array(chains, np.int64), np.array([seed, step, stream], np.uint64))
    return torch.from_numpy(rows[0] if isinstance(chain, int) else rows)


def integer(*, seed: int, chain: int, step: int, stream: int = Stream.FORWARD, block: int = 0) -> int:
    """A 63-bit integer, to seed other generators (`torch.manual_seed`)."""
    low, high, _, _ = philox.words(seed=seed, chain=chain, step=step, stream=stream, block=block)
    return (high << 32 | low) >> 1


def generator(*, seed: int, chain: int, step: int, stream: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for all other draws."""
    return torch.Generator(device).manual_seed(integer(seed=seed, chain=chain, step=step, stream=stream))


def _native(name: str, dtype: type = np.int64) -> Any:
    """A compiled function for this precision; imported and compiled at its first use."""
    if (name, dtype) not in _ready:
        with announced("the random number generator", f"{name}-{dtype.__name__}"):
            from langevin.kernels import native_normals

            function, key, chains = getattr(native_normals, name), np.zeros(3, np.uint64), np.zeros(1, np.int64)
            if name == "subsets":
                function(np.empty((1, 1), dtype), 2, chains, key)
            else:
                function(np.empty(1, dtype), 0, 0, key)
        _ready[name, dtype] = function
    return _ready[name, dtype]

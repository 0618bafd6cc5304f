"""Counter-based randomness: every draw is a pure function of integers.

What is drawn at step t of chain c does not depend on which other chains, processes, shards or threads run, nor on
whether the run was interrupted before. A stream is a sequence of numbers, and `normal` returns any contiguous range of
it; `langevin.kernels.philox` says which number is which. On the CPU the numbers are drawn by compiled code, on a GPU by
a Triton kernel, elsewhere by torch operations: the same integers, and the same normals to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.kernels import philox, updates
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
    if not out.is_cpu:
        return normal_rows(out[None], seed=seed, chains=(chain,), step=step, start=start, stream=stream)[0]
    if not out.is_contiguous():
        where = {"seed": seed, "chain": chain, "step": step, "stream": stream, "start": start}
        return out.copy_(philox.normals(count, **where, dtype=out.dtype, device=out.device))
    numbers, key = out.detach().numpy(), np.array([seed, step, stream], np.uint64)
    fill = _native("normals", numbers.dtype.type)
    each_piece(lambda first, last: fill(numbers[first:last], start + first, chain, key), count)
    return out


def normal_rows(
    out: Tensor,
    *,
    seed: int,
    chains: Sequence[int],
    step: int | Tensor,
    start: int = 0,
    stream: int = Stream.INJECTED,
) -> Tensor:
    """Fill each row of `out` with the numbers of its chain's stream, from number `start` on.

    >>> rows = normal_rows(torch.empty(2, 5), seed=1, chains=[0, 3], step=7)
    >>> bool((rows[1] == normal(5, seed=1, chain=3, step=7)).all())
    True
    """
    count = out.shape[1]
    if not out.is_cpu or isinstance(step, Tensor):
        philox.check(seed=seed, chain=max(chains), stream=stream)
        philox.check_range(start, count, out.dtype)
        numbers, where = numbers_on(tuple(chains), out.device), {"seed": seed, "stream": stream, "start": start}
        if updates.uses_triton(out.device) and (out.stride(1) == 1 or count < 2):
            from langevin.kernels import triton_kernels

            return triton_kernels.normals(out, numbers, step=step, **where)
        drawn = philox.normals(count, chain=numbers, step=step, **where, dtype=out.dtype, device=out.device)
        return out.copy_(drawn)
    if not out.is_contiguous() or count > PIECE:
        for chain, row in zip(chains, out, strict=True):
            normal(count, seed=seed, chain=chain, step=step, start=start, stream=stream, out=row)
        return out
    philox.check(seed=seed, chain=max(chains), step=step, stream=stream)
    philox.check_range(start, count, out.dtype)
    rows, key = out.detach().numpy(), np.array([seed, step, stream], np.uint64)
    fill = _native("normals", rows.dtype.type)
    for chain, row in zip(chains, rows, strict=True):
        fill(row, start, chain, key)
    return out


@lru_cache(maxsize=64)
def numbers_on(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers as a tensor on a device; made once, since a copy to a device makes the host wait."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").to(device)


def random_subset(
    num_data: int,
    size: int,
    *,
    seed: int,
    chain: int | Sequence[int],
    step: int,
    stream: int = Stream.BATCH,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The mini-batch of a step: `size` of `num_data` indices without replacement, independent from step to step.

    Of several chains, one row each. On every device they are the same.

    >>> both = random_subset(10, 3, seed=1, chain=[0, 1], step=5)
    >>> bool((both[1] == random_subset(10, 3, seed=1, chain=1, step=5)).all())
    True
    """
    device, alone = torch.device(device), isinstance(chain, int)
    chains = (chain,) if isinstance(chain, int) else tuple(chain)
    philox.check(seed=seed, chain=max(chains), step=step, stream=stream)
    if size >= num_data:
        every = torch.arange(num_data, device=device)
        return every if alone else every.repeat(len(chains), 1)
    if device.type != "cpu":
        which = chain if isinstance(chain, int) else numbers_on(chains, device)
        where: Any = {"seed": seed, "chain": which, "step": step, "stream": stream}
        return philox.subsets(num_data, size, **where, device=device)
    rows = np.empty((len(chains), size), np.int64)
    _native("subsets")(rows, num_data, np.array(chains, np.int64), np.array([seed, step, stream], np.uint64))
    return torch.from_numpy(rows[0] if alone else rows)


@dataclass(frozen=True)
class Source:
    """A stream as what `sample(output, source)` of a likelihood draws from: the same numbers on every device."""

    seed: int
    chain: int
    step: int
    stream: int

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal deviates in the shape of a tensor and on its device; in float32 at least."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        where: Any = {"seed": self.seed, "chain": self.chain, "step": self.step, "stream": self.stream}
        return normal(like.numel(), **where, dtype=dtype, device=like.device).reshape(like.shape)

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of a tensor and on its device, in float64."""
        drawn: Tensor = torch.special.ndtr(self.normal(like.double()))
        return drawn

    def integer(self) -> int:
        """A 63-bit integer, to seed other generators."""
        return integer(seed=self.seed, chain=self.chain, step=self.step, stream=self.stream)


def integer(*, seed: int, chain: int, step: int, stream: int = Stream.FORWARD, block: int = 0) -> int:
    """A 63-bit integer, to seed other generators (`torch.manual_seed`)."""
    low, high, _, _ = philox.words(seed=seed, chain=chain, step=step, stream=stream, block=block)
    return (high << 32 | low) >> 1


def generator(*, seed: int, chain: int, step: int, stream: int) -> torch.Generator:
    """A torch generator for all other draws, outside of steps; on the CPU, so that they are the same everywhere."""
    return torch.Generator().manual_seed(integer(seed=seed, chain=chain, step=step, stream=stream))


def uniforms(chains: Sequence[int], *, seed: int, step: int, stream: int, device: torch.device) -> Tensor:
    """A number from 0 to 1 of each chain, (chains,) in float64.

    >>> uniforms([0, 3], seed=1, step=2, stream=Stream.ACCEPT, device=torch.device("cpu")).shape
    torch.Size([2])
    """
    if device.type == "cpu":
        numbers = [integer(seed=seed, chain=chain, step=step, stream=stream) / 2**63 for chain in chains]
        return torch.tensor(numbers, dtype=torch.float64, device=device)
    philox.check(seed=seed, chain=max(chains), step=step, stream=stream)
    return philox.uniforms(seed=seed, chain=numbers_on(tuple(chains), device), step=step, stream=stream, device=device)


def seed_generators(number: int) -> None:
    """Seed torch's global generators: that of the CPU, and those of a device that is in use.

    Unlike `torch.manual_seed`, which also sets how a device that is not in use yet will begin.
    """
    torch.default_generator.manual_seed(number)
    if (module := _device_module()) is not None:
        module.manual_seed_all(number)


def generator_states() -> list[Tensor]:
    """The states of torch's global generators, for `restore_generators`."""
    module = _device_module()
    devices = range(0 if module is None else module.device_count())
    return [torch.get_rng_state(), *(module.get_rng_state(index) for index in devices)]


def restore_generators(states: Sequence[Tensor]) -> None:
    """Set the states of torch's global generators as they were."""
    torch.set_rng_state(states[0])
    module = _device_module()
    for index, state in enumerate(states[1:]):
        module.set_rng_state(state, index)


@contextmanager
def forked_generators(number: int) -> Iterator[None]:
    """Inside, torch's global generators are seeded; then they are as they were."""
    module = _device_module()
    devices = range(0 if module is None else module.device_count())
    with torch.random.fork_rng(devices):
        seed_generators(number)
        yield


def _device_module() -> Any:
    """torch's module of the accelerator, `torch.cuda` for example, if it is in use and has generators."""
    try:
        device = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, where there is none
        return None
    module: Any = None if device is None else torch.get_device_module(device)
    has = all(hasattr(module, name) for name in ("is_initialized", "manual_seed_all", "get_rng_state"))
    return module if has and module.is_initialized() else None


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

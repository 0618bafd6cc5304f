"""The random stream: Philox4x32-10 (Salmon et al. 2011), and which of its words is which number.

Philox maps a key and a counter to four random words of 32 bits, without a state. Here

    key     = seed                                     64 bits
    counter = c0  block, its low 32 bits
              c1  block's high 8 bits | stream (8 bits) | step's high 16 bits        from the lowest bit up
              c2  step's low 32 bits
              c3  chain

so the map from (seed, chain, step, stream, block) is injective. Normal deviate number p of a stream, in float32, is in
block 512⌊p/2048⌋ + p mod 512, lane ⌊(p mod 2048)/512⌋: a processor computes neighbouring blocks in one vector register,
and each register holds one lane. In float64 a normal takes two words: block 512⌊p/1024⌋ + p mod 512, lane ⌊(p mod
1024)/512⌋.

Two words give two normals by Box–Muller, r sin φ and r cos φ: r = √(−2 log u) with the uniform u of the first word,
φ of the second: its highest two bits choose the quadrant, the others the angle within it.

This module has the integers in Python, and both in torch operations for any device; `native_normals` has them for the
CPU, compiled. All three give the same integers, and the same normals to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from langevin.kernels import updates

COUNTERS = 512  # neighbouring blocks that share a span
SPAN = {torch.float32: 4 * COUNTERS, torch.float64: 2 * COUNTERS}  # normals that they give
LIMITS = {"seed": 2**64, "chain": 2**32, "step": 2**48, "stream": 2**8, "block": 2**40}
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 2**32 - 1
_AT_ONCE = 1 << 22  # normals drawn at a time: the integers take some ten times the memory of the result


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four words of 32 bits.

    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & _MASK, first >> 32 ^ c3 ^ k1, first & _MASK
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def words(*, seed: int, chain: int, step: int, stream: int, block: int = 0) -> tuple[int, int, int, int]:
    """The four words of a block of a stream."""
    check(seed=seed, chain=chain, step=step, stream=stream, block=block)
    counter = (block & _MASK, block >> 32 | stream << 8 | step >> 32 << 16, step & _MASK, chain)
    return philox(counter, (seed & _MASK, seed >> 32))


def check(**numbers: int) -> None:
    """Raise unless each number has its place in the counter."""
    for name, number in numbers.items():
        if not 0 <= number < LIMITS[name]:
            bits = LIMITS[name].bit_length() - 1
            raise ValueError(f"{name} must be an integer from 0 to 2^{bits} − 1; given {name}={number}.")


def check_range(start: int, count: int, dtype: torch.dtype) -> None:
    """Raise unless the stream has numbers `start` to `start + count` in this precision."""
    if dtype not in SPAN:
        raise ValueError(f"Noise is drawn in float32 or float64; given {dtype}.")
    if start < 0 or count < 0 or (start + count) // SPAN[dtype] >= LIMITS["block"] // COUNTERS:
        raise ValueError(f"A stream has numbers 0 to 2^{40 + SPAN[dtype] // 2048}; given {start} to {start + count}.")


def normals(
    count: int,
    *,
    seed: int,
    chain: int | Tensor,
    step: int | Tensor,
    stream: int,
    start: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Numbers `start` to `start + count` of a stream of standard normal deviates, in torch operations.

    Of several chains, a tensor (chains,) of their numbers on the device, a row each. The step may be a tensor as well,
    so that a captured graph can be replayed at other steps.
    """
    parts = [
        _normals(first, min(first + _AT_ONCE, start + count), seed, chain, step, stream, dtype, device)
        for first in range(start, start + max(count, 1), _AT_ONCE)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _normals(
    first: int,
    last: int,
    seed: int,
    chain: int | Tensor,
    step: int | Tensor,
    stream: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    span, lanes = SPAN[dtype], SPAN[dtype] // COUNTERS
    p = torch.arange(first, last, device=device)
    block, lane = COUNTERS * (p // span) + p % COUNTERS, p % span // COUNTERS
    drawn = _words(block, seed, chain, step, stream)
    if lanes == 4:
        first_words = torch.where(lane < 2, drawn[0], drawn[2])
        second = torch.where(lane < 2, drawn[1], drawn[3])
        uniform = ((first_words >> 1).to(dtype) + 0.5) * 2.0**-31
        angle = _signed(second << 2 & _MASK).to(dtype) * 2.0**-32
    else:
        uniform = (((drawn[1] << 20) | (drawn[0] >> 12)).to(dtype) + 0.5) * 2.0**-52
        second = drawn[3]
        angle = ((_signed(second << 2 & _MASK) << 20) + (drawn[2] >> 12)).to(dtype) * 2.0**-52
    angle = angle * (math.pi / 2)
    swapped, sign = (second & 1 << 30) != 0, (second & 1 << 31) != 0
    sine, cosine = torch.sin(angle), torch.cos(angle)
    up = torch.where(swapped, cosine, sine) * torch.where(sign, -1.0, 1.0)
    across = torch.where(swapped, sine, cosine) * torch.where(sign ^ swapped, -1.0, 1.0)
    return torch.sqrt(-2 * torch.log(uniform)) * torch.where(lane % 2 == 0, up, across)


def subsets(
    num_data: int,
    size: int,
    *,
    seed: int,
    chain: int | Tensor,
    step: int | Tensor,
    stream: int,
    device: torch.device,
) -> Tensor:
    """`size` of `num_data` numbers without replacement, in torch operations: those of `native_normals.subsets`.

    Floyd's algorithm draws t_k from 0 … n_k, n_k = num_data − size + k, and takes n_k instead if t_k is taken already.
    It is taken if an earlier t_j equals it, or if t_k = n_j and n_j was taken instead of t_j: a chain of references to
    earlier draws, which is followed for all k at once by doubling.
    """
    k = torch.arange(size, device=device)
    a, b, c, d = _first_words((size + 1) // 2, seed, chain, step, stream, device)
    odd = k % 2 == 1
    a, b, c, d = (each.index_select(-1, k // 2) for each in (a, b, c, d))
    low, high = torch.where(odd, c, a), torch.where(odd, d, b)
    last = k + (num_data - size)
    uniform = ((high << 21) | (low >> 11)).double() * 2.0**-53
    t = torch.minimum((uniform * (last + 1).double()).long(), last)
    ordered, places = torch.sort(t, dim=-1, stable=True)
    repeated = functional.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    taken = torch.zeros_like(repeated).scatter(-1, places, repeated)
    refers = t - (num_data - size)
    refers = torch.where((refers >= 0) & (refers < k), refers, k)
    for _ in range(max(size - 1, 0).bit_length()):
        taken = taken | taken.gather(-1, refers)
        refers = refers.gather(-1, refers)
    return torch.where(taken, last, t)


def _first_words(
    count: int, seed: int, chain: int | Tensor, step: int | Tensor, stream: int, device: torch.device
) -> tuple[Tensor, ...]:
    """The words of the first `count` blocks: on a GPU in one launch, in place of a hundred."""
    if not updates.uses_triton(device):
        return _words(torch.arange(count, device=device), seed, chain, step, stream)
    from langevin.kernels import triton_kernels

    chains = chain if isinstance(chain, Tensor) else torch.full((1,), chain, device=device)
    found = triton_kernels.words(count, chains, seed=seed, step=step, stream=stream)
    return (found if isinstance(chain, Tensor) else found[0]).unbind(-2)


def uniforms(*, seed: int, chain: Tensor, step: int | Tensor, stream: int, device: torch.device) -> Tensor:
    """The first two words of the stream of each chain as a number from 0 to 1, in float64."""
    low, high, _, _ = _words(torch.zeros(1, dtype=torch.int64, device=device), seed, chain, step, stream)
    return ((high << 31) | (low >> 1)).double().squeeze(1) * 2.0**-63


def _words(
    block: Tensor, seed: int, chain: int | Tensor, step: int | Tensor, stream: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The words of blocks, as integers in 64 bits: products wrap, and their bits are right."""
    none = torch.zeros_like(block)
    if isinstance(chain, Tensor):
        none = none + torch.zeros_like(chain)[:, None]
        chain = chain[:, None]
    c0, c1 = (none + block) & _MASK, (none + block) >> 32 | stream << 8 | step >> 32 << 16
    c2, c3 = none + (step & _MASK), none + chain
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(10):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = second >> 32 & _MASK ^ c1 ^ k0, second & _MASK
        c2, c3 = first >> 32 & _MASK ^ c3 ^ k1, first & _MASK
        k0, k1 = k0 + _WEYL[0] & _MASK, k1 + _WEYL[1] & _MASK
    return c0, c1, c2, c3


def _signed(word: Tensor) -> Tensor:
    """An unsigned word read as a signed one."""
    return word - (word >> 31 << 32)

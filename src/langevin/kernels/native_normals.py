"""The stream of `philox`, compiled for the CPU: below a nanosecond for a normal deviate in float32.

What matters for the speed: loops over slices of known length (an index that may be negative stops LLVM's
vectorisation), lanes that lie apart in memory, and no branch inside a loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types, uint32, uint64
from numba.extending import overload

from langevin.kernels.cache import jit
from langevin.kernels.native_math import cosine32, cosine64, fma, log, sine32, sine64

COUNTERS = 512
f32 = np.float32
_M0, _M1 = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@njit(forceinline=True, error_model="numpy")
def philox(c0, c1, c2, c3, k0, k1):
    """Four words of 32 bits; exclusive or gives 64-bit integers, in which LLVM multiplies without shuffles."""
    for _ in range(10):
        first = uint64(_M0) * uint64(c0)
        second = uint64(_M1) * uint64(c2)
        c0 = uint32(second >> uint64(32)) ^ c1 ^ k0
        c2 = uint32(first >> uint64(32)) ^ c3 ^ k1
        c1 = uint32(second)
        c3 = uint32(first)
        k0 = uint32(k0 + _W0)
        k1 = uint32(k1 + _W1)
    return uint32(c0), uint32(c1), uint32(c2), uint32(c3)


@njit(forceinline=True, error_model="numpy")
def _radius32(word):
    return np.sqrt(f32(-2) * log(fma(f32(np.int32(word >> uint32(1))), f32(2.0**-31), f32(2.0**-32))))


@njit(forceinline=True, error_model="numpy")
def _turn32(word):
    """Sine and cosine of an angle: the two highest bits choose its quadrant."""
    x = f32(np.int32(uint32(word << uint32(2)))) * f32(2.0**-32)
    sine, cosine = sine32(x), cosine32(x)
    sine_bits, cosine_bits = np.float32(sine).view(np.uint32), np.float32(cosine).view(np.uint32)
    high = np.uint32(1 << 31)
    swap = (sine_bits ^ cosine_bits) & np.uint32(np.int32(word << uint32(1)) >> np.int32(31))  # no branch in a loop
    up = sine_bits ^ swap ^ (word & high)
    across = cosine_bits ^ swap ^ ((word ^ (word << uint32(1))) & high)
    return np.uint32(up).view(np.float32), np.uint32(across).view(np.float32)


@njit(forceinline=True, error_model="numpy")
def _radius64(low, high):
    whole = np.int64((uint64(high) << uint64(20)) | uint64(low >> uint32(12)))
    return np.sqrt(-2.0 * log((np.float64(whole) + 0.5) * 2.0**-52))


@njit(forceinline=True, error_model="numpy")
def _turn64(low, high):
    whole = (np.int64(np.int32(uint32(high << uint32(2)))) << np.int64(20)) + np.int64(low >> uint32(12))
    x = np.float64(whole) * 2.0**-52
    sine, cosine = sine64(x), cosine64(x)
    sine_bits, cosine_bits = np.float64(sine).view(np.uint64), np.float64(cosine).view(np.uint64)
    word, top = np.uint64(high) << np.uint64(32), np.uint64(1 << 63)
    swap = (sine_bits ^ cosine_bits) & np.uint64(np.int64(word << np.uint64(1)) >> np.int64(63))
    up = sine_bits ^ swap ^ (word & top)
    across = cosine_bits ^ swap ^ ((word ^ (word << np.uint64(1))) & top)
    return np.uint64(up).view(np.float64), np.uint64(across).view(np.float64)


@jit
def _fill_words(words, count, base, c1, c2, c3, k0, k1):
    for i in range(count):
        a, b, c, d = philox(uint32(base + uint32(i)), c1, c2, c3, k0, k1)
        words[i] = a
        words[COUNTERS + i] = b
        words[2 * COUNTERS + i] = c
        words[3 * COUNTERS + i] = d


@jit
def _fill32(z, words, count, needed):
    for i in range(count):
        r = _radius32(words[i])
        up, across = _turn32(words[COUNTERS + i])
        z[i] = r * up
        z[COUNTERS + i] = r * across
    if needed > 2 * COUNTERS:
        for i in range(count):
            r = _radius32(words[2 * COUNTERS + i])
            up, across = _turn32(words[3 * COUNTERS + i])
            z[2 * COUNTERS + i] = r * up
            z[3 * COUNTERS + i] = r * across


@jit
def _fill64(z, words, count, needed):
    for i in range(count):
        r = _radius64(words[i], words[COUNTERS + i])
        up, across = _turn64(words[2 * COUNTERS + i], words[3 * COUNTERS + i])
        z[i] = r * up
        z[COUNTERS + i] = r * across


def _fill(z: Any, words: Any, count: Any, needed: Any) -> Any:
    """A span of normals from its words."""


@overload(_fill)
def _fill_either(z, words, count, needed):
    if z.dtype == types.float32:
        return lambda z, words, count, needed: _fill32(z, words, count, needed)
    return lambda z, words, count, needed: _fill64(z, words, count, needed)


@jit
def fill_span(z, words, needed, number, chain, where):
    """Fill z with the first `needed` numbers, or more, of span `number` of the stream; where = seed, step, stream.

    A span is 2,048 normals in float32 and 1,024 in float64.

    `words` is a buffer: two loops, whose data stay in the cache, are faster than one that runs out of registers.
    """
    block = uint64(number) * uint64(COUNTERS)
    seed, step, stream = where[0], where[1], where[2]
    c1 = uint32(block >> uint64(32)) | uint32(stream << uint64(8)) | uint32((step >> uint64(32)) << uint64(16))
    k0, k1 = uint32(seed), uint32(seed >> uint64(32))
    count = min(needed, COUNTERS)  # of a small network, less than the first lane
    _fill_words(words, count, uint32(block), uint32(c1), uint32(step), uint32(chain), k0, k1)
    _fill(z, words, count, needed)


@jit
def normals(out, start, chain, where):
    """Numbers `start` to `start + len(out)` of a stream."""
    span = COUNTERS * 4 if out.itemsize == 4 else COUNTERS * 2
    z, words = np.empty(span, out.dtype), np.empty(4 * COUNTERS, np.uint32)
    done, count = 0, out.size
    while done < count:
        number, offset = (start + done) // span, (start + done) % span
        some = min(span - offset, count - done)
        if some == span:
            fill_span(out[done : done + span], words, span, number, chain, where)
        else:
            fill_span(z, words, offset + some, number, chain, where)
            out[done : done + some] = z[offset : offset + some]
        done += some


@jit
def subsets(out, num_data, chains, where):
    """Row r: a uniformly random subset of range(num_data), without replacement, of chain number chains[r].

    Floyd's algorithm: number k of a subset takes two words of its stream. A table of the numbers that are taken, twice
    as long as the subset, finds repetitions.
    """
    size = out.shape[1]
    length = 4
    while length < 2 * size:
        length *= 2
    table = np.empty(length, np.int64)
    seed, step, stream = where[0], where[1], where[2]
    c1, c2 = uint32((stream << uint64(8)) | ((step >> uint64(32)) << uint64(16))), uint32(step)
    k0, k1 = uint32(seed), uint32(seed >> uint64(32))
    for row in range(out.shape[0]):
        table[:] = -1
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        for k in range(size):
            if k % 2 == 0:
                a, b, c, d = philox(uint32(k // 2), c1, c2, uint32(chains[row]), k0, k1)
            else:
                a, b = c, d
            last = num_data - size + k
            uniform = np.float64(((uint64(b) << uint64(32)) | uint64(a)) >> uint64(11)) * 2.0**-53
            chosen = min(np.int64(uniform * np.float64(last + 1)), np.int64(last))
            place = (chosen * 0x9E3779B1) & (length - 1)
            while table[place] != -1 and table[place] != chosen:
                place = (place + 1) & (length - 1)
            if table[place] == chosen:  # taken already: then the last number is not, and replaces it
                chosen = last
                place = (chosen * 0x9E3779B1) & (length - 1)
                while table[place] != -1:
                    place = (place + 1) & (length - 1)
            table[place] = chosen
            out[row, k] = chosen

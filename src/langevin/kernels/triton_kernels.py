"""Noise and whole updates for GPUs, in Triton: the equations of `native_updates`, the stream of `philox`.

A program computes 512 neighbouring counters of the stream, so a span of 2,048 normals in float32 and 1,024 in float64:
each of its 128 threads has four counters, whose words never leave the registers. What it reads and writes lies in four
(two) stretches of 512 neighbouring weights. One launch updates all tensors of all chains: a table has a row for each,
and another says which row and which span belong to a program. See docs/gpu.md for the arithmetic.

The numbers of an update that may change (its settings, the step) are read from memory, so that a captured graph can be
replayed with others. Import this module only where a kernel is about to run: it imports Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTERS = tl.constexpr(512)
# 4 warps of 32 threads: four counters a thread. Fused multiply-adds, whatever the default of the version is.
LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}
_COLUMNS = tl.constexpr(8)  # of the table: the addresses of θ, g and two states, weights, chain, position, unused
_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def _philox(block, seed, chain, step, stream):
    """Four words of each block."""
    c0 = (block & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((block >> 32) | (stream << 8) | ((step >> 32) << 16)).to(tl.uint32)
    c2 = (block * 0 + (step & 0xFFFFFFFF)).to(tl.uint32)
    c3 = (block * 0 + chain).to(tl.uint32)
    return tl.philox(seed, c0, c1, c2, c3)


@triton.jit
def _signed(word):
    """An unsigned word read as a signed one, in 64 bits."""
    wide = word.to(tl.int64)
    return wide - ((wide >> 31) << 32)


@triton.jit
def _turn(x, double: tl.constexpr):
    """sin(πx/2) and cos(πx/2) for |x| ≤ ½, by the polynomials of `native_math`: no branch for large angles."""
    t = x * x
    if double:
        p = -6.627624938992472e-10 * t + 5.691927850489633e-08
        p = p * t - 3.598842717144858e-06
        p = p * t + 0.0001604411847266723
        p = p * t - 0.004681754135314827
        p = p * t + 0.07969262624616692
        p = p * t - 0.6459640975062463
        p = p * t + 1.5707963267948966
        q = -6.321256869628588e-09 * t + 4.710609726757823e-07
        q = q * t - 2.520203677046026e-05
        q = q * t + 0.0009192602741831558
        q = q * t - 0.02086348076331121
        q = q * t + 0.2536695079010467
        q = q * t - 1.2337005501361697
        q = q * t + 1.0
    else:
        p = -0.004602149212814176 * t + 0.07968021764775542
        p = p * t - 0.6459634776648118
        p = p * t + 1.5707963219532366
        q = -0.020408158392998334 * t + 0.25359857130254576
        q = q * t - 1.2336970074214912
        q = q * t + 0.9999999723284944
    return x * p, q


@triton.jit
def _polar(uniform, angle, word, double: tl.constexpr):
    """r sin φ and r cos φ; the two highest bits of the word choose the quadrant."""
    r = tl.sqrt(-2 * tl.log(uniform))
    sine, cosine = _turn(angle, double)
    swapped, negative = (word >> 30) & 1 == 1, (word >> 31) & 1 == 1
    up = tl.where(swapped, cosine, sine)
    across = tl.where(swapped, sine, cosine)
    return r * tl.where(negative, -up, up), r * tl.where(negative ^ swapped, -across, across)


@triton.jit
def _pair32(first, second):
    """Two normals of two words, in float32."""
    uniform = ((first >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2⁻³¹
    angle = _signed(second << 2).to(tl.float32) * 2.3283064365386963e-10  # 2⁻³²
    return _polar(uniform, angle, second, False)


@triton.jit
def _pair64(a, b, c, d):
    """Two normals of four words, in float64."""
    tiny = tl.full(a.shape, 2.220446049250313e-16, tl.float64)  # 2⁻⁵²; a literal would be in single precision
    uniform = (((b.to(tl.int64) << 20) | (a.to(tl.int64) >> 12)).to(tl.float64) + 0.5) * tiny
    angle = ((_signed(d << 2) << 20) + (c.to(tl.int64) >> 12)).to(tl.float64) * tiny
    return _polar(uniform, angle, d, True)


@triton.jit
def _expm1(x, double: tl.constexpr):
    """e^x − 1, by its series near 0."""
    degree: tl.constexpr = 14 if double else 8
    total = x * 0 + 1
    for k in tl.static_range(degree, 1, -1):
        total = 1 + total * x / k
    return tl.where(tl.abs(x) < 0.35, total * x, tl.exp(x) - 1)


@triton.jit
def _one(theta, g, first, second, eta, s, name: tl.constexpr, double: tl.constexpr):
    """The new θ and states of weights: the equation of one method, see `native_updates`."""
    if name == "langevin":
        theta = theta - tl.load(s) * g + tl.load(s + 1) * eta
    elif name == "rmsprop":
        first = tl.load(s + 2) * first + tl.load(s + 3) * g * g
        scale = tl.sqrt(first) + tl.load(s + 4)
        theta = theta - tl.load(s) * g / scale + tl.load(s + 1) * eta / tl.sqrt(scale)
    elif name == "sghmc":
        first = tl.load(s) * first - tl.load(s + 1) * g + tl.load(s + 2) * eta
        theta = theta + tl.load(s + 3) * first
    elif name == "sghmc_metric":
        first = tl.load(s) * first - tl.load(s + 1) * (second * g) + tl.load(s + 2) * eta
        theta = theta + tl.load(s + 3) * (second * first)
    else:
        h, drift, force = tl.load(s), tl.load(s + 1), tl.load(s + 2)
        damping, follows, root = tl.load(s + 3), tl.load(s + 4), tl.load(s + 5)
        temperature, rate, squared, tiny = tl.load(s + 6), tl.load(s + 7), tl.load(s + 8), tl.load(s + 9)
        u, xi = first, second
        alpha = tl.maximum(damping - follows * xi, 0.0)
        kick = force * h / 2
        if name == "symmetric_gaussian":
            b = alpha + xi + tiny
            a = _expm1(-(b * h), double)
            u = u - kick * g
            u = u + u * a + tl.sqrt(tl.maximum(-((a + 2) * a / b * alpha), 0.0)) * root * eta
            u = u - kick * g
        elif name == "symmetric_relativistic":
            x = (alpha + xi) * (-h / 2)
            u = u - kick * g
            r = tl.rsqrt(1 + squared * u * u)
            u = u + u * _expm1(x * r * (1 - x / 2 * r * (1 - r * r)), double)
            u = u + tl.sqrt(2 * h * temperature) * tl.sqrt(alpha) * eta
            r = tl.rsqrt(1 + squared * u * u)
            u = u + u * _expm1(x * r * (1 - x / 2 * r * (1 - r * r)), double)
            u = u - kick * g
        else:  # fused
            b = (alpha + xi) * tl.rsqrt(1 + squared * u * u) + tiny
            a = _expm1(-(b * h), double)
            time = a / b
            u = u + u * a + time * force * g + tl.sqrt(tl.maximum(-((a + 2) * time * alpha), 0.0)) * root * eta
        r = tl.rsqrt(1 + squared * u * u)
        v = u * r
        theta = theta + drift * v
        first, second = u, xi + rate * (v * v - temperature * r * r * r)
    return theta, first, second


@triton.jit
def _lane(pointers, offset, size, eta, settings, states: tl.constexpr, name: tl.constexpr, kind: tl.constexpr):
    """Update the weights at these offsets."""
    theta_at, gradient_at, first_at, second_at = pointers
    inside = (offset >= 0) & (offset < size)
    theta, g = tl.load(theta_at + offset, inside, 0.0), tl.load(gradient_at + offset, inside, 0.0)
    first, second = theta, theta
    if states > 0:
        first = tl.load(first_at + offset, inside, 0.0)
    if states > 1:
        second = tl.load(second_at + offset, inside, 0.0)
    theta, first, second = _one(theta, g, first, second, eta, settings, name, kind == tl.float64)
    tl.store(theta_at + offset, theta, inside)
    if states > 0:
        tl.store(first_at + offset, first, inside)
    if states > 1:
        tl.store(second_at + offset, second, inside)


@triton.jit(do_not_specialize=["seed", "step"])
def _update(
    table,
    programs,
    settings,
    seed,
    step,
    stream,
    noisy: tl.constexpr,
    states: tl.constexpr,
    name: tl.constexpr,
    kind: tl.constexpr,
    in_memory: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row, number = table + tl.load(programs + 2 * program) * _COLUMNS, tl.load(programs + 2 * program + 1)
    pointer: tl.constexpr = tl.pointer_type(kind)
    pointers = (
        tl.load(row).to(pointer),
        tl.load(row + 1).to(pointer),
        tl.load(row + 2).to(pointer),
        tl.load(row + 3).to(pointer),
    )
    size, chain, position = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    at = (tl.load(step) if in_memory else step).to(tl.int64)  # a small integer comes in 32 bits
    i = tl.arange(0, COUNTERS).to(tl.int64)
    lanes: tl.constexpr = 2 if kind == tl.float64 else 4
    offset = number * COUNTERS * lanes + i - position
    none = tl.zeros([COUNTERS], kind)
    if noisy:
        a, b, c, d = _philox(number * COUNTERS + i, seed.to(tl.int64), chain, at, stream)
        if lanes == 2:
            up, across = _pair64(a, b, c, d)
            _lane(pointers, offset, size, up, settings, states, name, kind)
            _lane(pointers, offset + COUNTERS, size, across, settings, states, name, kind)
        else:
            up, across = _pair32(a, b)
            _lane(pointers, offset, size, up, settings, states, name, kind)
            _lane(pointers, offset + COUNTERS, size, across, settings, states, name, kind)
            up, across = _pair32(c, d)
            _lane(pointers, offset + 2 * COUNTERS, size, up, settings, states, name, kind)
            _lane(pointers, offset + 3 * COUNTERS, size, across, settings, states, name, kind)
    else:
        for lane in tl.static_range(lanes):
            _lane(pointers, offset + lane * COUNTERS, size, none, settings, states, name, kind)


@triton.jit(do_not_specialize=["seed", "step", "start"])
def _normals(out, stride, count, chains, seed, step, stream, start, kind: tl.constexpr, in_memory: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    chain = tl.load(chains + tl.program_id(1))
    out += tl.program_id(1).to(tl.int64) * stride
    lanes: tl.constexpr = 2 if kind == tl.float64 else 4
    number += start // (COUNTERS * lanes)
    at = (tl.load(step) if in_memory else step).to(tl.int64)  # a small integer comes in 32 bits
    i = tl.arange(0, COUNTERS).to(tl.int64)
    offset = number * COUNTERS * lanes + i - start
    a, b, c, d = _philox(number * COUNTERS + i, seed.to(tl.int64), chain, at, stream)
    if lanes == 2:
        up, across = _pair64(a, b, c, d)
        tl.store(out + offset, up, (offset >= 0) & (offset < count))
        offset += COUNTERS
        tl.store(out + offset, across, (offset >= 0) & (offset < count))
    else:
        up, across = _pair32(a, b)
        tl.store(out + offset, up, (offset >= 0) & (offset < count))
        offset += COUNTERS
        tl.store(out + offset, across, (offset >= 0) & (offset < count))
        up, across = _pair32(c, d)
        offset += COUNTERS
        tl.store(out + offset, up, (offset >= 0) & (offset < count))
        offset += COUNTERS
        tl.store(out + offset, across, (offset >= 0) & (offset < count))


@triton.jit(do_not_specialize=["seed", "step"])
def _words(out, count, chains, seed, step, stream, in_memory: tl.constexpr):
    chain = tl.load(chains + tl.program_id(1))
    out += tl.program_id(1).to(tl.int64) * 4 * count
    i = tl.program_id(0).to(tl.int64) * COUNTERS + tl.arange(0, COUNTERS)
    at = (tl.load(step) if in_memory else step).to(tl.int64)  # a small integer comes in 32 bits
    a, b, c, d = _philox(i, seed.to(tl.int64), chain, at, stream)
    tl.store(out + i, a.to(tl.int64), i < count)
    tl.store(out + count + i, b.to(tl.int64), i < count)
    tl.store(out + 2 * count + i, c.to(tl.int64), i < count)
    tl.store(out + 3 * count + i, d.to(tl.int64), i < count)


def normals(out: Tensor, chains: Tensor, *, seed: int, step: int | Tensor, stream: int, start: int) -> Tensor:
    """Fill each row of `out`, whose rows are contiguous, with numbers of its chain's stream, from number `start` on."""
    span, count = _span(out.dtype), out.shape[1]
    spans = (start + count - 1) // span - start // span + 1 if count else 0
    if spans and len(out):
        given = (out, out.stride(0), count, chains, _as_signed(seed), step, stream, start)
        with _device_of(out):
            _normals[(spans, len(out))](*given, _TYPES[out.dtype], isinstance(step, Tensor), **LAUNCH)
    return out


def words(count: int, chains: Tensor, *, seed: int, step: int | Tensor, stream: int) -> Tensor:
    """The words of the first `count` blocks of the stream of each chain, (chains, 4, count), in 64 bits."""
    out = torch.empty(len(chains), 4, count, dtype=torch.int64, device=chains.device)
    given = (out, count, chains, _as_signed(seed), step, stream)
    with _device_of(out):
        _words[(triton.cdiv(count, COUNTERS.value), len(chains))](*given, isinstance(step, Tensor), **LAUNCH)
    return out


class Programs:
    """The tables of an update: of tensors, with their addresses, and of programs. The arguments of `updates.Table`."""

    def __init__(self, params: Sequence[Tensor], positions: Sequence[int], chains: Sequence[int]) -> None:
        self.dtype, self.device = params[0].dtype, params[0].device
        sizes, span = [p.numel() // len(chains) for p in params], _span(self.dtype)
        rows = [(size, chain, position) for chain in chains for size, position in zip(sizes, positions, strict=True)]
        self._rows = np.zeros((len(rows), _COLUMNS.value), np.int64)
        self._rows[:, 4:7] = rows
        self._tensor = np.tile(np.arange(len(params)), len(chains))  # the parameter of each row
        row = np.repeat(np.arange(len(chains)), len(params))
        self._shift = (row * self._rows[:, 4] * params[0].element_size())[:, None]
        programs = [
            (index, number)
            for index, (size, _, position) in enumerate(rows)
            for number in (range(position // span, (position + size - 1) // span + 1) if size else ())
        ]
        self._count = len(programs)
        self._programs = torch.tensor(programs, dtype=torch.int64, device="cpu").to(self.device)
        self._table = torch.empty(self._rows.shape, dtype=torch.int64, device=self.device)
        self._settings = torch.empty(0, dtype=self.dtype, device=self.device)
        self._known: tuple[list[int], tuple[float, ...]] = [], ()  # the addresses and the settings that are there

    def run(self, kernel: Any, tensors: Sequence[Sequence[Tensor]], where: tuple[int, Any, int], noisy: bool) -> None:
        """Update all weights; `tensors` are the parameters, their gradients, and their states."""
        if not self._count:
            return
        self._upload(kernel.settings, tensors)
        seed, step, stream = where
        options = (noisy, len(tensors) - 2, kernel.name, _TYPES[self.dtype], isinstance(step, Tensor))
        given = (self._table, self._programs, self._settings, _as_signed(seed), step, int(stream))
        with _device_of(self._table):
            _update[(self._count,)](*given, *options, **LAUNCH)
        torch.autograd.graph.increment_version([t for k, each in enumerate(tensors) if k != 1 for t in each])

    def _upload(self, settings: tuple[float, ...], tensors: Sequence[Sequence[Tensor]]) -> None:
        """Copy the addresses and the settings to the device, if they have changed, without waiting."""
        addresses, before = [t.data_ptr() for each in tensors for t in each], self._known
        self._known = addresses, settings
        if addresses != before[0]:  # gradients often lie where the last ones were
            columns = np.array(addresses, np.int64).reshape(len(tensors), -1).T
            rows = self._rows.copy()  # the last copy may still be on its way
            rows[:, : len(tensors)] = columns[self._tensor] + self._shift
            self._table.copy_(_pinned(torch.from_numpy(rows), self.device), non_blocking=True)
        if settings != before[1]:
            numbers = torch.tensor(settings, dtype=self.dtype, device="cpu")
            if len(self._settings) != len(settings):
                self._settings = torch.empty(len(settings), dtype=self.dtype, device=self.device)
            self._settings.copy_(_pinned(numbers, self.device), non_blocking=True)


def _span(dtype: torch.dtype) -> int:
    return int(COUNTERS.value) * (4 if dtype == torch.float32 else 2)


def _as_signed(seed: int) -> int:
    """The bits of an unsigned 64-bit integer as a signed one."""
    return seed - 2**64 if seed >= 2**63 else seed


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()

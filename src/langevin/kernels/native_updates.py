"""Whole updates in one pass over memory: the noise is drawn into a buffer that stays in the cache, and used there.

An update gets a table with a row for every tensor of every chain: NUM_WEIGHTS, CHAIN (its number), ROW (its index), the
POSITION of its first weight in the noise stream, BEGIN (where it starts if all rows are laid end to end), LAST (the
position after the last weight of its chain), and the addresses of θ, the gradient and up to two tensors of state. Each
function below is the equation of one method for a stretch of weights; `g + decay · θ` is the gradient with that of a
Gaussian prior. They are the same as the methods' `update` in torch operations, to rounding, and tested against them.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from langevin.kernels.cache import jit
from langevin.kernels.native_math import expm1, pointer, rsqrt
from langevin.kernels.native_normals import COUNTERS, fill_span

NUM_WEIGHTS, CHAIN, ROW, POSITION, BEGIN, LAST, THETA, GRADIENT, FIRST_STATE, SECOND_STATE = range(10)


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def _sum_squares(x):
    """For the energy of the prior, which is only looked at; the order of the sum is the compiler's."""
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i] * x[i]
    return total


@njit(inline="always")  # into each update: a function passed to a compiled one could not be kept on disk
def _drive(piece, table, decays, start, stop, settings, chain_where, noisy, energies):
    """Apply `piece` to weights `start` to `stop` of all, span by span of the noise."""
    span = COUNTERS * 4 if settings.itemsize == 4 else COUNTERS * 2
    z, words = np.zeros(span, settings.dtype), np.empty(4 * COUNTERS, np.uint32)
    known_chain, known_span = np.int64(-1), np.int64(-1)
    for row in range(table.shape[0]):
        size, begin = table[row, NUM_WEIGHTS], table[row, BEGIN]
        i, end = max(start - begin, 0), min(stop - begin, size)
        if i >= end:
            continue
        theta = carray(pointer(table[row, THETA]), size, settings.dtype)
        gradient = carray(pointer(table[row, GRADIENT]), size, settings.dtype)
        first = carray(pointer(table[row, FIRST_STATE]), size, settings.dtype)
        second = carray(pointer(table[row, SECOND_STATE]), size, settings.dtype)
        chain, position, decay = table[row, CHAIN], table[row, POSITION], settings.dtype.type(decays[row])
        while i < end:
            number, offset = (position + i) // span, (position + i) % span
            some = min(span - offset, end - i)
            if noisy and (number != known_span or chain != known_chain):
                needed = min(table[row, LAST] - number * span, span)
                fill_span(z, words, needed, number, chain, chain_where)
                known_chain, known_span = chain, number
            j = i + some
            if decay != 0:
                energies[table[row, ROW]] += 0.5 * decays[row] * np.float64(_sum_squares(theta[i:j]))
            eta = z[offset : offset + some]
            piece(theta[i:j], gradient[i:j], first[i:j], second[i:j], eta, settings, decay)
            i = j


@njit(nogil=True, error_model="numpy")
def _langevin(theta, gradient, first, second, eta, settings, decay):
    """θ ← θ − ε g + √(2εT/N) η."""
    rate, spread = settings[0], settings[1]
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        theta[i] = theta[i] - rate * g + spread * eta[i]


@njit(nogil=True, error_model="numpy")
def _rmsprop(theta, gradient, square, second, eta, settings, decay):
    """V ← V + w (g² − V);  A = 1/(λ + √V);  θ ← θ − ε A g + √(2εT/N) A^{1/2} η. Frozen: w = 0."""
    rate, spread, keep, weight, eps = settings[0], settings[1], settings[2], settings[3], settings[4]
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        v = keep * square[i] + weight * g * g
        square[i] = v
        scale = np.sqrt(v) + eps
        theta[i] = theta[i] - rate * g / scale + spread * eta[i] / np.sqrt(scale)


@njit(nogil=True, error_model="numpy")
def _sghmc(theta, gradient, momentum, second, eta, settings, decay):
    """u ← e u − c ℓ N g + √(T(1−e²) − B̂) η;  θ ← θ + h ℓ u."""
    keep, force, spread, drift = settings[0], settings[1], settings[2], settings[3]
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        u = keep * momentum[i] - force * g + spread * eta[i]
        momentum[i] = u
        theta[i] = theta[i] + drift * u


@njit(nogil=True, error_model="numpy")
def _sghmc_metric(theta, gradient, momentum, metric, eta, settings, decay):
    """u ← e u − c ℓ N A^{1/2} g + √(T(1−e²)) η;  θ ← θ + h ℓ A^{1/2} u."""
    keep, force, spread, drift = settings[0], settings[1], settings[2], settings[3]
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        u = keep * momentum[i] - force * (metric[i] * g) + spread * eta[i]
        momentum[i] = u
        theta[i] = theta[i] + drift * (metric[i] * u)


# The thermostats' settings: h, h ℓ, ℓN, D, whether α depends on ξ (1 or 0), √T, T, h κ, (ℓ/max_speed)², tiny, 1, ½, 2


@njit(nogil=True, error_model="numpy")
def _symmetric_gaussian(theta, gradient, momentum, thermostat, eta, settings, decay):
    """kick(h/2); u ← e^{−βh} u + √(αT (1−e^{−2βh})/β) η; kick(h/2);  θ ← θ + h ℓ u;  ξ ← ξ + h κ (u² − T)."""
    h, drift, force, damping, follows = settings[0], settings[1], settings[2], settings[3], settings[4]
    root, temperature, rate, tiny = settings[5], settings[6], settings[7], settings[9]
    half, two = settings[11], settings[12]
    zero = damping - damping
    kick = force * h * half
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        xi = thermostat[i]
        alpha = max(damping - follows * xi, zero)
        b = alpha + xi + tiny
        a = expm1(-(b * h))
        u = momentum[i] - kick * g
        u = u + u * a + np.sqrt(max(-((a + two) * a / b * alpha), zero)) * root * eta[i]
        u = u - kick * g
        momentum[i] = u
        theta[i] = theta[i] + drift * u
        thermostat[i] = xi + rate * (u * u - temperature)


@njit(nogil=True, error_model="numpy")
def _friction(momentum, thermostat, exponent, settings):
    """F(h/2): u ← u exp(x r (1 − (x/2) r (1 − r²))), x = −βh/2, r = 1/s."""
    h, damping, follows, squared = settings[0], settings[3], settings[4], settings[8]
    one, half = settings[10], settings[11]
    zero = damping - damping
    for i in range(momentum.size):
        xi, u = thermostat[i], momentum[i]
        x = (max(damping - follows * xi, zero) + xi) * (-h * half)
        r = rsqrt(one + squared * u * u)
        exponent[i] = x * r * (one - half * x * r * (one - r * r))
    for i in range(momentum.size):
        momentum[i] = momentum[i] + momentum[i] * expm1(exponent[i])


@njit(nogil=True, error_model="numpy")
def _symmetric_relativistic(theta, gradient, momentum, thermostat, eta, settings, decay):
    """kick(h/2), F(h/2), u + √(2αTh) η, F(h/2), kick(h/2);  θ ← θ + h ℓ u/s;  ξ ← ξ + h κ (u²/s² − T/s³).

    In several short loops: in one, the operations on a weight are so long a chain that the processor waits for it.
    """
    h, drift, force, damping, follows = settings[0], settings[1], settings[2], settings[3], settings[4]
    temperature, rate, squared, one, half = settings[6], settings[7], settings[8], settings[10], settings[11]
    zero = damping - damping
    kick, spread = force * h * half, np.sqrt(settings[12] * h * temperature)
    exponent = np.empty_like(theta)
    for i in range(theta.size):
        momentum[i] = momentum[i] - kick * (gradient[i] + decay * theta[i])
    _friction(momentum, thermostat, exponent, settings)
    for i in range(theta.size):
        momentum[i] = momentum[i] + spread * np.sqrt(max(damping - follows * thermostat[i], zero)) * eta[i]
    _friction(momentum, thermostat, exponent, settings)
    for i in range(theta.size):
        u = momentum[i] - kick * (gradient[i] + decay * theta[i])
        momentum[i] = u
        r = rsqrt(one + squared * u * u)
        v = u * r
        theta[i] = theta[i] + drift * v
        thermostat[i] = thermostat[i] + rate * (v * v - temperature * r * r * r)


@njit(nogil=True, error_model="numpy")
def _fused(theta, gradient, momentum, thermostat, eta, settings, decay):
    """u ← e^{−bh} u − ((1−e^{−bh})/b) ℓ N g + √(αT (1−e^{−2bh})/b) η, b = β/s;  θ and ξ as above."""
    h, drift, force, damping, follows = settings[0], settings[1], settings[2], settings[3], settings[4]
    root, temperature, rate, squared = settings[5], settings[6], settings[7], settings[8]
    tiny, one, two = settings[9], settings[10], settings[12]
    zero = damping - damping
    for i in range(theta.size):
        g = gradient[i] + decay * theta[i]
        xi, u = thermostat[i], momentum[i]
        alpha = max(damping - follows * xi, zero)
        b = (alpha + xi) * rsqrt(one + squared * u * u) + tiny
        a = expm1(-(b * h))
        time = a / b
        u = u + u * a + time * force * g + np.sqrt(max(-((a + two) * time * alpha), zero)) * root * eta[i]
        momentum[i] = u
        r = rsqrt(one + squared * u * u)
        v = u * r
        theta[i] = theta[i] + drift * v
        thermostat[i] = xi + rate * (v * v - temperature * r * r * r)


@jit
def langevin(table, decays, start, stop, settings, where, noisy, energies):
    """SGLD."""
    _drive(_langevin, table, decays, start, stop, settings, where, noisy, energies)


@jit
def rmsprop(table, decays, start, stop, settings, where, noisy, energies):
    """pSGLD; state: V."""
    _drive(_rmsprop, table, decays, start, stop, settings, where, noisy, energies)


@jit
def sghmc(table, decays, start, stop, settings, where, noisy, energies):
    """SGHMC; state: u."""
    _drive(_sghmc, table, decays, start, stop, settings, where, noisy, energies)


@jit
def sghmc_metric(table, decays, start, stop, settings, where, noisy, energies):
    """SGHMC with a metric; state: u and A^{1/2}."""
    _drive(_sghmc_metric, table, decays, start, stop, settings, where, noisy, energies)


@jit
def symmetric_gaussian(table, decays, start, stop, settings, where, noisy, energies):
    """SGNHT and ATMC; state: u and ξ."""
    _drive(_symmetric_gaussian, table, decays, start, stop, settings, where, noisy, energies)


@jit
def symmetric_relativistic(table, decays, start, stop, settings, where, noisy, energies):
    """SGNHT and ATMC; state: u and ξ."""
    _drive(_symmetric_relativistic, table, decays, start, stop, settings, where, noisy, energies)


@jit
def fused(table, decays, start, stop, settings, where, noisy, energies):
    """SGNHT and ATMC; state: u and ξ."""
    _drive(_fused, table, decays, start, stop, settings, where, noisy, energies)

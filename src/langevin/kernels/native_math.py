"""Elementary functions as polynomials, which LLVM vectorises, in both precisions; and arrays at an address.

The polynomials are Chebyshev fits, accurate to the rounding of their precision. Literals would be float64 and widen
the arithmetic, so constants are converted. Import this module only where a kernel is about to run: it imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

f32 = np.float32
_LN2, _LN2_HIGH, _LN2_LOW = f32(0.6931471805599453), f32(0.693359375), f32(-2.1219444005469057e-4)


@intrinsic
def fma(typingctx, a, b, c):
    """a · b + c, rounded once: the same on every machine, and one instruction where there is one."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return a(a, a, a), generate


def log(u: Any) -> Any:
    """log u for 0 < u ≤ 1."""


@njit(forceinline=True, error_model="numpy")
def _log32(u):
    bits = np.float32(u).view(np.int32)
    exponent = np.int32((bits - np.int32(0x3F2AAAAB)) & np.int32(-8388608))  # so that the mantissa is in [2/3, 4/3)
    f = np.int32(bits - exponent).view(np.float32) - f32(1)
    p = f32(0.13111009639517954)
    p = fma(p, f, f32(-0.1469570259587119))
    p = fma(p, f, f32(0.14170549221307543))
    p = fma(p, f, f32(-0.16540293084777913))
    p = fma(p, f, f32(0.20001618616745018))
    p = fma(p, f, f32(-0.2500177584222771))
    p = fma(p, f, f32(0.3333333333333333))
    return fma(f32(exponent >> np.int32(23)), _LN2, fma(f * f, fma(f, p, f32(-0.5)), f))


@njit(forceinline=True, error_model="numpy")
def _log64(u):
    bits = np.float64(u).view(np.int64)
    exponent = np.int64((bits - np.int64(0x3FE5555555555555)) & np.int64(-4503599627370496))
    f = np.int64(bits - exponent).view(np.float64) - 1.0
    p = -0.07730769181911153
    p = fma(p, f, 0.08082022805971766)
    p = fma(p, f, -0.041719942791435476)
    p = fma(p, f, 0.04400369243072337)
    p = fma(p, f, -0.056689908563992544)
    p = fma(p, f, 0.06000536404795356)
    p = fma(p, f, -0.0624079013522121)
    p = fma(p, f, 0.06657072104827468)
    p = fma(p, f, -0.07143315368653184)
    p = fma(p, f, 0.07692785032479312)
    p = fma(p, f, -0.08333319535532796)
    p = fma(p, f, 0.09090894718066429)
    p = fma(p, f, -0.10000000237702213)
    p = fma(p, f, 0.11111111358713932)
    p = fma(p, f, -0.12499999997926427)
    p = fma(p, f, 0.1428571428355438)
    p = fma(p, f, -0.16666666666673666)
    p = fma(p, f, 0.20000000000007292)
    p = fma(p, f, -0.24999999999999997)
    p = fma(p, f, 0.3333333333333333)
    return fma(np.float64(exponent >> np.int64(52)), 0.6931471805599453, fma(f * f, fma(f, p, -0.5), f))


@overload(log)
def _log(u):
    return (lambda u: _log32(u)) if u == types.float32 else (lambda u: _log64(u))


@njit(forceinline=True, error_model="numpy")
def sine32(x):
    """sin(πx/2) for |x| ≤ ½."""
    t = x * x
    p = f32(-0.004602149212814176)
    p = fma(p, t, f32(0.07968021764775542))
    p = fma(p, t, f32(-0.6459634776648118))
    p = fma(p, t, f32(1.5707963219532366))
    return x * p


@njit(forceinline=True, error_model="numpy")
def cosine32(x):
    """cos(πx/2) for |x| ≤ ½."""
    t = x * x
    p = f32(-0.020408158392998334)
    p = fma(p, t, f32(0.25359857130254576))
    p = fma(p, t, f32(-1.2336970074214912))
    return fma(p, t, f32(0.9999999723284944))


@njit(forceinline=True, error_model="numpy")
def sine64(x):
    """sin(πx/2) for |x| ≤ ½."""
    t = x * x
    p = -6.627624938992472e-10
    p = fma(p, t, 5.691927850489633e-08)
    p = fma(p, t, -3.598842717144858e-06)
    p = fma(p, t, 0.0001604411847266723)
    p = fma(p, t, -0.004681754135314827)
    p = fma(p, t, 0.07969262624616692)
    p = fma(p, t, -0.6459640975062463)
    p = fma(p, t, 1.5707963267948966)
    return x * p


@njit(forceinline=True, error_model="numpy")
def cosine64(x):
    """cos(πx/2) for |x| ≤ ½."""
    t = x * x
    p = -6.321256869628588e-09
    p = fma(p, t, 4.710609726757823e-07)
    p = fma(p, t, -2.520203677046026e-05)
    p = fma(p, t, 0.0009192602741831558)
    p = fma(p, t, -0.02086348076331121)
    p = fma(p, t, 0.2536695079010467)
    p = fma(p, t, -1.2337005501361697)
    return fma(p, t, 1.0)


def expm1(x: Any) -> Any:
    """e^x − 1 for any x; beyond ±80 as at ±80. Not exp minus one, which is 40 % wrong at x = 1e-6 in float32."""


@njit(forceinline=True, error_model="numpy")
def _expm1_32(x):
    x = min(max(x, f32(-80)), f32(80))
    n = np.rint(x * f32(1.4426950408889634))
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    p = f32(0.00019890980869750327)
    p = fma(p, r, f32(0.0013933641031986701))
    p = fma(p, r, f32(0.008333310934448869))
    p = fma(p, r, f32(0.04166646500604005))
    p = fma(p, r, f32(0.16666666681614256))
    p = fma(p, r, f32(0.5000000013457727))
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return fma(power, fma(r * r, p, r), power - f32(1))


@njit(forceinline=True, error_model="numpy")
def _expm1_64(x):
    x = min(max(x, -80.0), 80.0)
    n = np.rint(x * 1.4426950408889634)
    r = fma(n, -1.90821492927058770002e-10, fma(n, -0.693147180369123816490, x))
    p = 1.6086622436215554e-10
    p = fma(p, r, 2.0918129454967065e-09)
    p = fma(p, r, 2.5052071109214447e-08)
    p = fma(p, r, 2.755726330147475e-07)
    p = fma(p, r, 2.755731924720479e-06)
    p = fma(p, r, 2.480158733642132e-05)
    p = fma(p, r, 0.00019841269841263304)
    p = fma(p, r, 0.0013888888888879082)
    p = fma(p, r, 0.008333333333333333)
    p = fma(p, r, 0.04166666666666668)
    p = fma(p, r, 0.16666666666666666)
    p = fma(p, r, 0.5)
    power = np.int64((np.int64(n) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return fma(power, fma(r * r, p, r), power - 1.0)


@overload(expm1)
def _expm1(x):
    return (lambda x: _expm1_32(x)) if x == types.float32 else (lambda x: _expm1_64(x))


def rsqrt(x: Any) -> Any:
    """1/√x for a normal number x. In float32 by Newton's method from a guess by the bits, faster than a division."""


@njit(forceinline=True, error_model="numpy")
def _rsqrt32(x):
    y = np.int32(np.int32(0x5F375A86) - (np.float32(x).view(np.int32) >> np.int32(1))).view(np.float32)
    half = f32(0.5) * x
    y = y * (f32(1.5) - half * y * y)
    return y * (f32(1.5) - half * y * y)


@overload(rsqrt)
def _rsqrt(x):
    return (lambda x: _rsqrt32(x)) if x == types.float32 else (lambda x: 1.0 / np.sqrt(x))


@intrinsic
def pointer(typingctx, address):
    """An address as a pointer, for `numba.carray`."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate

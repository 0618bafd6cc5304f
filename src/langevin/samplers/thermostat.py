"""The base of SGNHT and ATMC: a momentum and a thermostat for every weight.

With ℓ the lr at construction, h = lr/ℓ (1 unless a schedule changes lr), D = −log(momentum), κ = thermostat_rate,
s = √(1 + (ℓu/max_speed)²) (1 if max_speed is None), and the injected noise α(ξ), in which the two methods differ,

    β = α + ξ
    u ← u − (h/2) ℓ N g                                                                   `symmetric`
    u ← e^{−βh} u + √(αT (1−e^{−2βh})/β) η            (s = 1; otherwise F(h/2), u + √(2αTh) η, F(h/2))
    u ← u − (h/2) ℓ N g
    θ ← θ + h ℓ u/s                                                 s of the new u, so a move is below h max_speed
    ξ ← ξ + h κ (u²/s² − T/s³)

where F solves u̇ = −βu/s to second order. The bias is of second order in h, and vanishes with lr for every friction.
A thermostat can hold T if the half kick after the friction does not exceed it alone, so if ℓ²N²Var(g) < 4T.

`fused` replaces the three lines of u by u ← e^{−bh} u − ((1−e^{−bh})/b) ℓ N g + √(αT (1−e^{−2bh})/b) η, b = β/s. At any
lr its temperature is too high by the factor (βh/2)coth(βh/2): 7 % at β = 0.9 and h = 1, 20 % at 1.6. Freezing s during
a step adds an error of first order in h (variances 0.7 % too small at the defaults of ATMC).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from langevin.core.numbers import Number, add, root
from langevin.kernels.updates import Kernel
from langevin.samplers import integrators
from langevin.samplers.base import Group, Normals, Sampler
from langevin.samplers.integrators import Integrator

_TINY = 1e-20  # added to a friction that divides: at 0 the ratios have the limits h and 2h


class Step(NamedTuple):
    """The terms of one update of the momentum."""

    h: Number
    g: Tensor
    force: float  # ℓ N
    alpha: Tensor  # injected noise
    beta: Tensor  # friction
    temperature: float
    eta: Tensor | None  # None at T = 0
    slowness: Callable[[Tensor], Tensor] | None  # u ↦ 1/s; None if s = 1


def symmetric(u: Tensor, step: Step) -> None:
    """kick(h/2), friction and noise(h), kick(h/2)."""
    add(u, step.g, -step.force * step.h / 2)
    if step.slowness is None:
        ornstein_uhlenbeck(u, step)
    else:
        _friction(u, step, step.slowness)
        if step.eta is not None:
            add(u, step.alpha.sqrt().mul_(step.eta), root(2 * step.h * step.temperature))
        _friction(u, step, step.slowness)
    add(u, step.g, -step.force * step.h / 2)


def ornstein_uhlenbeck(u: Tensor, step: Step) -> None:
    """u ← e^{−βh} u + √(αT (1−e^{−2βh})/β) η: exact. From a = e^{−βh} − 1, since 1 − e^{−2βh} = −a (2 + a)."""
    b = step.beta + _TINY
    a = torch.expm1(b * -step.h)
    u.addcmul_(u, a)
    if step.eta is not None:
        variance = (a + 2).mul_(a).div_(b).mul_(step.alpha).neg_()
        u.addcmul_(variance.sqrt_(), step.eta, value=math.sqrt(step.temperature))


def _friction(u: Tensor, step: Step, slowness: Callable[[Tensor], Tensor]) -> None:
    """u̇ = −βu/s over h/2: u ← u exp(x r (1 − (x/2) r (1 − r²))), x = −βh/2, r = 1/s.

    Second order: the series of log u, in which dr/dt = β r² (1 − r²). Contracting for every β > 0.
    """
    x = step.beta * (-step.h / 2)
    r = slowness(u)
    slows_down = (1 - r * r).mul_(r).mul_(x).mul_(-0.5).add_(1)
    u.mul_(torch.exp(x.mul_(r).mul_(slows_down)))


def fused(u: Tensor, step: Step) -> None:
    """u ← e^{−bh} u − ((1−e^{−bh})/b) ℓ N g + √(αT (1−e^{−2bh})/b) η with b = β/s(u).

    All from a = e^{−bh} − 1, as above.
    """
    b = step.beta + _TINY if step.slowness is None else (step.beta * step.slowness(u)).add_(_TINY)
    a = torch.expm1(b * -step.h)
    time = a / b
    u.addcmul_(u, a).addcmul_(time, step.g, value=step.force)
    if step.eta is not None:
        variance = a.add_(2).mul_(time).mul_(step.alpha).neg_()
        u.addcmul_(variance.sqrt_(), step.eta, value=math.sqrt(step.temperature))


INTEGRATORS = {"symmetric": symmetric, "fused": fused}


class Thermostat(Sampler):
    """A sampler with momentum whose friction adapts, for every weight, until the kinetic energy corresponds to T."""

    reduces_noise: ClassVar[bool]  # whether α falls as ξ grows: α = max(D − ξ, 0), else D

    @abstractmethod  # a subclass chooses its defaults
    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        momentum: float,
        max_speed: float | Literal["auto"] | None,
        thermostat_rate: float | Literal["auto"],
        integrator: Integrator,
        temperature: float,
        seed: int,
        chain: int | Sequence[int],
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            num_data=num_data,
            temperature=temperature,
            seed=seed,
            chain=chain,
            momentum=momentum,
            max_speed=max_speed,
            thermostat_rate=thermostat_rate,
            integrator=integrator,
        )
        self._resolve()

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters; the group's current lr is its ℓ, and `"auto"` settings are derived from it."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        lr, momentum = group.setdefault("reference_lr", group["lr"]), group["momentum"]
        if not 0 < momentum < 1:
            raise ValueError(
                f"momentum is the fraction of u after a step, strictly between 0 and 1; given momentum={momentum}. "
                f"Write momentum=0.9."
            )
        if group["thermostat_rate"] == "auto":
            group["thermostat_rate"] = (math.log(momentum) / 10) ** 2
        if not (math.isfinite(group["thermostat_rate"]) and group["thermostat_rate"] > 0):
            raise ValueError(
                f"thermostat_rate must be positive and finite; given thermostat_rate={group['thermostat_rate']}. "
                f'Write thermostat_rate="auto", here {(math.log(momentum) / 10) ** 2:.3g}.'
            )
        if group["max_speed"] == "auto":
            group["max_speed"] = 10 / 3 * lr
        if group["max_speed"] is not None and not (math.isfinite(group["max_speed"]) and group["max_speed"] > lr):
            raise ValueError(
                f"max_speed is the largest move of a weight per step and must exceed lr={lr}, the typical move; "
                f"given max_speed={group['max_speed']}. Write max_speed={10 / 3 * lr:.3g}, or None for no limit."
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._resolve()

    def _resolve(self) -> None:
        self._integrate = integrators.resolve(self.param_groups, INTEGRATORS)

    def injected(self, damping: float, xi: Tensor) -> Tensor:
        """α(ξ), with D = `damping`."""
        return (damping - xi).clamp_min(0) if self.reduces_noise else torch.full_like(xi, damping)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """u by the integrator;  θ ← θ + h ℓ u/s;  ξ ← ξ + h κ (u²/s² − T/s³)."""
        unit, temperature, rate = group["reference_lr"], group["temperature"], group["thermostat_rate"]
        h, damping, force = group["lr"] / unit, -math.log(group["momentum"]), unit * group["num_data"]
        slowness = _slowness(unit, group["max_speed"])
        momenta, thermostats = self.zeros_at_first("momentum", params), self.zeros_at_first("thermostat", params)
        etas = normals() if temperature > 0 else [None] * len(params)
        for theta, u, xi, g, eta in zip(params, momenta, thermostats, grads, etas, strict=True):
            alpha = self.injected(damping, xi)
            self._integrate(u, Step(h, g, force, alpha, alpha + xi, temperature, eta, slowness))
            r = torch.ones_like(u) if slowness is None else slowness(u)
            v = u * r
            add(theta, v, h * unit)
            add(xi, v.square_().sub_(temperature * r * r * r), h * rate)

    def kernel(self, group: Group, params: list[Tensor]) -> Kernel:
        """The same; see `native_updates` for the order of the settings."""
        unit, temperature, max_speed = group["reference_lr"], group["temperature"], group["max_speed"]
        h, damping, force = group["lr"] / unit, -math.log(group["momentum"]), unit * group["num_data"]
        name = group["integrator"]
        if name == "symmetric":
            name += "_gaussian" if max_speed is None else "_relativistic"
        squared = 0.0 if max_speed is None else (unit / max_speed) ** 2
        moves = (h, h * unit, force, damping, float(self.reduces_noise))
        heat = (math.sqrt(temperature), temperature, h * group["thermostat_rate"], squared)
        return Kernel(name, (*moves, *heat, _TINY, 1.0, 0.5, 2.0), ("momentum", "thermostat"))

    def observables(self) -> dict[str, Iterable[Tensor]]:
        """u²/s and ξ. With s = 1 the thermostat makes the mean of u² equal T by construction."""
        moving = self._moving()
        if not moving:
            return {}
        kinetic = (self._kinetic(group, self.state[p]["momentum"]) for group, p in moving)
        return {"kinetic": kinetic, "thermostat": [self.state[p]["thermostat"] for _, p in moving]}

    @staticmethod
    def _kinetic(group: Group, u: Tensor) -> Tensor:
        slowness = _slowness(group["reference_lr"], group["max_speed"])
        return u.square() if slowness is None else u.square().mul_(slowness(u))

    def stability_limit(self, curvature: float) -> float:
        """SGHMC's at h = 1 (Gaussian kinetic energy and ξ = 0); `symmetric`: 2/√(Nλ), for every positive friction."""
        kick = integrators.resolve(self.param_groups, integrators.KICKS)
        return integrators.stability_limit(kick, self.param_groups[0], curvature)

    def gradient_noise_temperature(self, variance: float) -> float:
        """0: the friction ξ dissipates the mini-batch noise."""
        return 0.0


def _slowness(unit: float, max_speed: float | None) -> Callable[[Tensor], Tensor] | None:
    """u ↦ 1/s = 1/√(1 + (ℓu/max_speed)²); None if it is 1."""
    if max_speed is None:
        return None
    squared = (unit / max_speed) ** 2
    return lambda u: u.square().mul_(squared).add_(1).rsqrt_()

"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014), with dimensionless momentum.

With ℓ the lr at construction, h = lr/ℓ (1 unless a schedule changes lr), D = −log(momentum) and e = e^{−Dh}:

    u ← e (u − (h/2) ℓ N g) − (h/2) ℓ N g + √(T(1−e²) − B̂) η                              `symmetric`
    θ ← θ + h ℓ u

B̂ = (c ℓ N)² Var(g) is the variance that the mini-batch noise adds to u by itself, c = h(1+e)/2 the gradient's
coefficient. With `fused` it is c = (1−e)/D, so that u ← e u − c ℓ N g + √(T(1−e²) − B̂) η.

With a diagonal `metric` A^{1/2} this is done in the coordinates A^{−1/2}θ: g becomes A^{1/2} g, B̂ becomes A B̂, and
θ ← θ + h ℓ A^{1/2} u. The target is the same, and lr the typical move of a weight in units of its A^{1/2}.

Target: exp(−U/T), with variances (1 − ℓ²h²∂²U/4)⁻¹ times too large on a quadratic energy; `fused` has the additional
factor (Dh/2)coth(Dh/2) at every lr: 4 %, 15 %, 41 % at momentum 0.5, 0.25, 0.1 (see `integrators`). Mini-batch noise
raises the temperature by about ℓ²N²Var(g)/(2D) unless `gradient_variance` is given, which B̂ then takes off the injected
noise.

Noise: u has variance T, so lr is the typical move of a weight per step at T = 1 (as in Adam), for every N; a larger N
strengthens the force of the gradient on u, not the noise. At T = 0 this is SGD with momentum e^{−D} and learning rate
c ℓ² N, which is ½(1+e^{−D}) ℓ² N.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core.numbers import add, add_each, exp, expm1, positive_part, root
from langevin.kernels.updates import Kernel
from langevin.samplers import integrators
from langevin.samplers.base import SAMPLERS, Group, Normals, Sampler, store_metric
from langevin.samplers.integrators import Integrator


@SAMPLERS.register
class SGHMC(Sampler):
    """Underdamped Langevin dynamics with mini-batch gradients.

    Args:
        params: parameters or parameter groups.
        lr: ℓ, the typical move of a weight per step.
        num_data: number of training examples N.
        momentum: the fraction of u that remains after a step at h = 1, in (0, 1).
        integrator: `"symmetric"` or `"fused"` (see `integrators`).
        gradient_variance: Var(g) of a coordinate of the mini-batch gradient, subtracted from the injected noise: a
            number, or one tensor per parameter in the order of `params`.
        metric: A^{1/2}, one tensor per parameter (1): the scales of the posterior, if they are known.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    order = 2
    citation: ClassVar[str] = """@inproceedings{chen2014stochastic,
  title={Stochastic gradient {H}amiltonian {M}onte {C}arlo}, author={Chen, Tianqi and Fox, Emily and Guestrin, Carlos},
  booktitle={Proceedings of the 31st International Conference on Machine Learning}, pages={1683--1691}, year={2014}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        momentum: float = 0.9,
        integrator: Integrator = "symmetric",
        gradient_variance: float | Sequence[Tensor] = 0.0,
        metric: Sequence[Tensor] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if not 0 < momentum < 1:
            raise ValueError(f"momentum must lie strictly between 0 and 1; given momentum={momentum}. Try 0.9.")
        by_parameter = not isinstance(gradient_variance, int | float)
        super().__init__(
            params,
            lr=lr,
            num_data=num_data,
            temperature=temperature,
            seed=seed,
            chain=chain,
            momentum=momentum,
            integrator=integrator,
            gradient_variance=0.0 if by_parameter else float(gradient_variance),  # type: ignore[arg-type]
        )
        self._kick = integrators.resolve(self.param_groups, integrators.KICKS)
        if metric is not None:
            store_metric(self, metric)
        if by_parameter:
            self._store_variances(list(gradient_variance))  # type: ignore[arg-type]
        for group in self.param_groups:
            for parameter in group["params"]:
                self._check_variance(group, parameter)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters; the group's current lr is its ℓ."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("reference_lr", group["lr"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("integrator", "fused")  # states saved before there was a choice
        self._kick = integrators.resolve(self.param_groups, integrators.KICKS)

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """u ← e u − c ℓ N A^{1/2} g + √(T(1−e²) − A B̂) η;  θ ← θ + h ℓ A^{1/2} u."""
        unit, temperature = group["reference_lr"], group["temperature"]
        h, damping = group["lr"] / unit, -math.log(group["momentum"])
        force = self._kick(damping, h) * unit * group["num_data"]  # c ℓ N, so B̂ = force² · Var(g)
        momentum = self.zeros_at_first("momentum", params)
        roots = self._metric(params)

        torch._foreach_mul_(momentum, exp(-damping * h))
        add_each(momentum, grads if roots is None else list(torch._foreach_mul(grads, roots)), -force)
        if temperature > 0:
            total = -expm1(-2 * damping * h) * temperature
            if self._variance_by_weight(group, params):
                for p, u, eta in zip(params, momentum, normals(), strict=True):
                    known = self.state[p].get("gradient_variance", group["gradient_variance"])
                    scale = 1.0 if roots is None else self.state[p]["metric"].square()
                    add(u, eta, root(positive_part(total - force**2 * known * scale)))
            else:
                left = positive_part(total - force**2 * group["gradient_variance"])
                add_each(momentum, normals(), root(left))
        add_each(params, momentum if roots is None else list(torch._foreach_mul(momentum, roots)), h * unit)

    def kernel(self, group: Group, params: list[Tensor]) -> Kernel | None:
        """The same, unless the gradient's variance is by weight."""
        if self._variance_by_weight(group, params):
            return None
        unit, temperature = group["reference_lr"], group["temperature"]
        h, damping = group["lr"] / unit, -math.log(group["momentum"])
        force = self._kick(damping, h) * unit * group["num_data"]
        left = max(-math.expm1(-2 * damping * h) * temperature - force**2 * group["gradient_variance"], 0.0)
        settings = (math.exp(-damping * h), force, math.sqrt(left), h * unit)
        if self._metric(params) is not None:
            return Kernel("sghmc_metric", settings, ("momentum", "metric"))
        return Kernel("sghmc", settings, ("momentum",))

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer:
        """SGD with momentum e^{−D} and learning rate c ℓ² N: ½(1+e^{−D}) ℓ² N, `fused` ((1−e^{−D})/D) ℓ² N."""
        kick = integrators.KICKS[group["integrator"]](-math.log(group["momentum"]), 1.0)
        rate = kick * group["reference_lr"] ** 2 * group["num_data"]
        return torch.optim.SGD(params, lr=rate, momentum=group["momentum"])

    def observables(self) -> dict[str, Iterable[Tensor]]:
        """u²."""
        moving = self._moving()
        return {"kinetic": (self.state[p]["momentum"].square() for _, p in moving)} if moving else {}

    def stability_limit(self, curvature: float) -> float:
        """2/√(Nλ), for every friction; `fused` √(2(1+e)D / ((1−e) N λ)), e = e^{−D}: at h = 1."""
        return integrators.stability_limit(self._kick, self.param_groups[0], curvature)

    def gradient_noise_temperature(self, variance: float) -> float:
        """c h ℓ²N²(Var(g) − `gradient_variance`)/(2(1−e)), which is (h²/4)coth(Dh/2) ℓ²N²Var(g) if nothing is given."""
        group = self.param_groups[0]
        unit, h, damping = group["reference_lr"], group["lr"] / group["reference_lr"], -math.log(group["momentum"])
        each = self._kick(damping, h) * h * (unit * group["num_data"]) ** 2 / (-2 * math.expm1(-damping * h))
        return float(each * (variance - group["gradient_variance"]))

    def _metric(self, params: list[Tensor]) -> list[Tensor] | None:
        """A^{1/2} of each parameter; None if it is 1."""
        if "metric" not in self.state[params[0]]:
            return None
        return [self.state[p]["metric"] for p in params]

    def _variance_by_weight(self, group: Group, params: list[Tensor]) -> bool:
        """Whether B̂ differs from weight to weight."""
        scaled = group["gradient_variance"] > 0 and "metric" in self.state[params[0]]
        return scaled or any("gradient_variance" in self.state[p] for p in params)

    def _store_variances(self, variances: list[Tensor]) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        shapes, expected = [tuple(v.shape) for v in variances], [tuple(p.shape) for p in params]
        if shapes != expected:
            raise ValueError(f"gradient_variance needs one tensor per parameter, shapes {expected}; given {shapes}.")
        for parameter, variance in zip(params, variances, strict=True):
            self.state[parameter]["gradient_variance"] = variance.detach().to(parameter, copy=True)

    def _check_variance(self, group: Group, parameter: Tensor) -> None:
        """Raise unless B̂ ≤ T(1−e²): beyond, the mini-batch noise alone exceeds the temperature T."""
        variance = self.state[parameter].get("gradient_variance", group["gradient_variance"])
        if "metric" in self.state[parameter]:
            variance = variance * self.state[parameter]["metric"].square()
        largest = smallest = 0.0 if isinstance(variance, Tensor) else variance
        if isinstance(variance, Tensor) and variance.numel() > 0:
            largest, smallest = float(variance.max()), float(variance.min())
        force = self._kick(-math.log(group["momentum"]), 1.0) * group["lr"] * group["num_data"]
        limit = (1 - group["momentum"] ** 2) * group["temperature"] / force**2
        if smallest < 0 or not math.isfinite(largest) or (group["temperature"] > 0 and largest > limit):
            raise ValueError(
                f"gradient_variance must lie in 0 … about 2DT/(lr N)², here {limit:.3g}; given up to {largest:.3g}. At "
                f"this lr the gradient-noise temperature alone exceeds T: lower lr or momentum, or use larger batches."
            )

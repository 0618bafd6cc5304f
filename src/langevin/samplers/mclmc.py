"""Microcanonical Langevin Monte Carlo (Robnik, De Luca, Silverstein & Seljak 2023; Robnik & Seljak 2024), full-batch.

The momentum u is a direction, ‖u‖ = 1. With d the number of weights, A^{1/2} a frozen diagonal, ε = lr √d and
F = N A^{1/2} g/T, e = −F/‖F‖, a = e·u:

    kick(c)     δ = cε‖F‖/(d−1), ζ = e^{−δ}     u ← normalize[(1−ζ)(1+ζ+a(1−ζ)) e + 2ζ u]
                                                ΔK += (d−1)[δ − ln 2 + ln((1+a)(1−ζ²) + 2ζ²)]
    drift       θ ← θ + ½ ε A^{1/2} u
    step        kick(b), drift, kick(1−2b), drift, kick(b), refresh                         two gradients
    refresh     u ← normalize(u + ν z), ν² = (e^{2ε/L} − 1)/d
    ΔE          N (loss′ − loss)/T + ΔK, which continuous time would keep at 0

Step size, by chain, in burn-in: ξ = ΔE²/(dV) + 10⁻⁸, w = exp(−½(ln ξ/9)²), ε⁻⁶ = Σwξε⁻⁶/Σw with older steps forgotten
by (n−1)/(n+1), n = 150. V is 0.1 at first, since large steps find the typical set soonest, and falls geometrically to
its final value in the last part of burn-in. L = √Σ Var(A^{-1/2}θ) of late burn-in (`microcanonical.py`). ΔE is of all
directions, so a single stiff one may be unstable at that ε and hardly show: after burn-in ε is at most half the
stability limit of the stiffest direction, which power iterations find, while V falls and at the end: how stiff it is
changes along the way. Where it goes on changing, as in networks with a sampled or a predicted noise, a chain drifts
into regions where ε is unstable, and heats up: `MAMS` is turned back there.

Target: exp(−U/T) in continuous time, for any L. The discrete chain has no Metropolis test: its bias is O(lr²) and is
governed by V. On a Gaussian of condition 10⁴, V = 5·10⁻⁴ leaves the mean temperature at 0.99 and that of the stiffest
tenth of the directions at 0.93; V = 0.1 leaves 0.9 and 0.7.

Noise: u keeps its length, so lr is the root mean square move of a weight per step (at A = 1) whatever N and T are; both
act through the force F alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.samplers.base import SAMPLERS, Group, Normals
from langevin.samplers.directions import normalize
from langevin.samplers.microcanonical import EXPLORING, LIMIT, Microcanonical

_FALLEN = 0.95  # share of burn-in at which V has fallen
_SHARE = 0.5  # of the stability limit of the stiffest direction, that lr is at most
_LOOKS = 6  # at the stiffest direction, while V falls and at the end
_BETWEEN = 20  # steps from look to look, at least
_POWER_ITERATIONS = 15, 5  # at the first look and at later ones, which begin where the last ended; two gradients each
_DIFFERENCE = 0.01  # of a finite difference, over the root mean square of the weights


@SAMPLERS.register
class MCLMC(Microcanonical):
    """Microcanonical Langevin Monte Carlo, unadjusted: `sampler.step(closure)`.

    Args:
        params: parameters.
        lr: ε/√d, about the move of a weight per step; without it, adapted until `freeze` is called.
        num_data: number of training examples N.
        L: the distance (in A^{-1/2}θ) after which u has forgotten its direction; without it, adapted as well.
        V: the squared energy error per weight and step to which lr is adapted.
        adapt_steps: the length of burn-in: V is 0.1 in the first 70 % and then falls; `lv.sample` gives it.
        adapt: whether lr is adapted although it is given; it is then the first one.
        metric: A^{1/2}, one tensor per parameter (1): the scales of the posterior, if they are known.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).

    `param_groups[0]` has "V", "L" and "adapt_steps" (None: V as it is), which may be changed while it runs; a number
    "L" is that of all chains and takes precedence over the adapted ones. `by_chain(name)` has the adapted "lr" and "L",
    the last "energy_error" (ΔE), and "rejected": the steps that were not finite, since `freeze`.
    """

    order = 2
    citation: ClassVar[str] = """@article{robnik2023microcanonical,
  title={Microcanonical {H}amiltonian {M}onte {C}arlo}, author={Robnik, Jakob and De Luca, G. Bruno and Silverstein, Eva
  and Seljak, Uro{\\v{s}}}, journal={Journal of Machine Learning Research}, volume={24}, number={311}, pages={1--34},
  year={2023}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        num_data: int,
        L: float | None = None,
        V: float = 5e-4,
        adapt_steps: int | None = None,
        adapt: bool | None = None,
        metric: Sequence[Tensor] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if not (math.isfinite(V) and V > 0):
            raise ValueError(f"V must be positive and finite; given V={V}.")
        super().__init__(
            params,
            lr,
            num_data=num_data,
            L=L,
            V=V,
            adapt_steps=adapt_steps,
            adapt=adapt,
            bounded=False,
            metric=metric,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """Kick, drift, kick, drift, kick, refresh."""
        (theta,), (g,) = params, grads
        if group["adapt"] and _looks_at_curvature(group):
            self._bound(group)
        epsilon, error, finite = self.unadjusted(group, theta, g, normals)
        if group["frozen"]:
            return
        if group["adapt"]:
            self.adapt_by_energy(group, _annealed(group), epsilon, error, finite)
        self.adapt_distance(group)

    def _bound(self, group: Group) -> None:
        """Look at the stiffest direction; after the last look, keep lr away from its stability limit."""
        largest = self.by_chain("curvature", 0.0)
        largest.copy_(torch.maximum(largest.double(), self._largest_curvature()))
        if group["frozen"]:
            limit = LIMIT / (largest.double() * group["num_data"] / group["temperature"]).sqrt()
            self.set_lengths(group, torch.minimum(self.lengths(group), _SHARE * limit))
            group["bounded"] = True

    def _largest_curvature(self) -> Tensor:
        """Of A^{1/2} ∇²(U/N) A^{1/2} at θ, by power iteration with central differences: (chains, 1)."""
        rows, root = self._its_rows(self.param_groups[0]), self.metric()
        theta, loss, gradient = rows.theta.clone(), rows.loss, rows.gradient
        length = _DIFFERENCE * torch.linalg.vector_norm(theta, dim=1, keepdim=True) / math.sqrt(theta.shape[1])
        length = torch.where(length > 0, length, _DIFFERENCE)
        iterations = _POWER_ITERATIONS["stiffest" in self.state[rows.params[0]]]
        stiffest = self.by_weight("stiffest", lambda: normalize(self.first_normals()))
        v, curvature = stiffest, theta.new_zeros(len(theta), 1)
        for _ in range(iterations):
            along = v if root is None else root * v
            along = along * (length / torch.linalg.vector_norm(along, dim=1, keepdim=True))
            slopes = []
            for sign in (1, -1):
                rows.theta.copy_(theta + sign * along)
                slopes.append(self.evaluate()[1])
            image = (slopes[0] - slopes[1]) / 2
            image = image if root is None else root * image
            scale = torch.linalg.vector_norm(along if root is None else along / root, dim=1, keepdim=True)
            curvature = torch.linalg.vector_norm(image, dim=1, keepdim=True) / scale
            v = normalize(image)
        stiffest.copy_(v)
        rows.theta.copy_(theta)
        rows.loss, rows.gradient = loss, gradient
        rows.write()
        for p, g in zip(rows.params, rows.by_parameter(gradient), strict=True):
            if p.grad is not None:
                p.grad.copy_(g)
        return torch.clamp(curvature.double(), min=1e-30)

    def observables(self) -> dict[str, Iterable[Tensor]]:
        """ΔE²/d, the V that the chain has; and the number of steps that were not finite."""
        p = self.param_groups[0]["params"][0]
        if "energy_error" not in self.state.get(p, {}):
            return {}
        d = self._its_rows(self.param_groups[0]).theta.shape[1]
        return {
            "energy_error": [self.by_chain("energy_error").square() / d],
            "rejected": [self.by_chain("rejected", 0.0)],
        }


def _annealed(group: Group) -> float:
    """V at this step: 0.1, then geometrically to the final one."""
    if not group["adapt_steps"] or group["V"] >= EXPLORING:
        return float(group["V"])
    done = (group["step"] / group["adapt_steps"] - group["held"]) / (_FALLEN - group["held"])
    return float(EXPLORING * (group["V"] / EXPLORING) ** min(max(done, 0.0), 1.0))


def _looks_at_curvature(group: Group) -> bool:
    """Whether a look at the stiffest direction is due: a few times while V falls, and once when it is frozen."""
    if group["frozen"]:
        return not group["bounded"]
    step, stop = int(group["step"]), int(group["adapt_steps"] or 0)
    start = int(group["held"] * stop)
    return start <= step < stop and (step - start) % max(_BETWEEN, (stop - start) // (_LOOKS - 1)) == 0

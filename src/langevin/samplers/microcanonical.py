"""What `MCLMC` and `MAMS` share: the moves of a momentum u that is a direction, and how ε and L adapt.

The symbols are those of `mclmc.py`. A flow is kick(b), drift, kick(1−2b), drift, kick(b), of two gradients; ΔE is its
energy error, which continuous time would keep at 0. In the first part of burn-in steps are large and have no test:
that finds the typical set soonest. L = √Σ Var(A^{-1/2}θ) of late burn-in, and in burn-in five times what has been seen
of it: a chain that is on its way should not turn so soon. (After as many steps networks on four data sets had a lower
test loss than with one times; with twenty times it was lower on two of the four, and higher on two.)
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from langevin.samplers.base import Group, Normals
from langevin.samplers.directions import kick_and_drift, normalize, refresh
from langevin.samplers.full_batch import FullBatchSampler

EXPLORING = 0.1  # V of large steps, which find the typical set soonest
HELD = 0.7  # share of burn-in in which steps are large
LIMIT = 2.553  # of lr √(N λ/T), above which the flow is unstable
_B = 0.1931833275037836  # of the integrator with the smallest error for two gradients
_KEEP = 149 / 151
_ON_ITS_WAY = 5.0  # times L, in burn-in
_SETTLED = 100  # steps that an estimate of the spread takes at least


class Microcanonical(FullBatchSampler, ABC):
    """Base class of `MCLMC` and `MAMS`."""

    gradients_per_step = 2
    explores = True

    def __init__(self, params: Iterable[Any], lr: float | None, *, adapt: bool | None, **settings: Any) -> None:
        L = settings["L"]
        if L is not None and not (math.isfinite(L) and L > 0):
            raise ValueError(f"L must be positive and finite; given L={L}.")
        super().__init__(
            params,
            lr=0.01 if lr is None else lr,
            adapt=lr is None if adapt is None else adapt,
            held=HELD,
            window=0,
            **settings,
        )
        self.adapts = self.param_groups[0]["adapt"] or L is None

    def plan(self, burn_in: int) -> None:
        """Steps are large in the first part of burn-in."""
        group = self.param_groups[0]
        if group["adapt_steps"] is None:
            group["adapt_steps"] = burn_in

    def flow(self, group: Group, theta: Tensor, g: Tensor, u: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """θ and u, in place, along the flow for a time ε; the loss and the gradient there, and ΔE."""
        scale, root = group["num_data"] / group["temperature"], self.metric()
        start = self._its_rows(group).loss
        assert start is not None
        outer, inner, half = _B * scale * epsilon, (1 - 2 * _B) * scale * epsilon, epsilon / 2
        change = kick_and_drift(u, theta, g, root, outer, half)
        _, g = self.evaluate()
        change += kick_and_drift(u, theta, g, root, inner, half)
        loss, g = self.evaluate()
        change += kick_and_drift(u, theta, g, root, outer, None)
        return loss, g, scale * (loss - start) + change

    def unadjusted(self, group: Group, theta: Tensor, g: Tensor, normals: Normals) -> tuple[Tensor, Tensor, Tensor]:
        """Flow and refresh; a step that is not finite returns to the old θ with a fresh u. ε, ΔE, what is finite."""
        d, u, loss = theta.shape[1], self.momentum(), self._its_rows(group).loss
        assert loss is not None
        epsilon, before = self.lengths(group) * math.sqrt(d), (theta.clone(), loss, g)
        loss, g, error = self.flow(group, theta, g, u, epsilon)
        finite = error.isfinite()
        if not (finite.is_cpu and bool(finite.all())):
            u.copy_(torch.where(finite, u, 0))
            self.by_chain("rejected", 0.0).add_(~finite)
        self.arrive(finite, before, (loss, g))
        self.by_chain("energy_error").copy_(error.nan_to_num(0.0, 0.0, 0.0))
        self.refresh(group, u, epsilon, normals)
        return epsilon, error, finite

    def momentum(self) -> Tensor:
        """u, (chains, d)."""
        return self.by_weight("momentum", lambda: normalize(self.first_normals()))

    def refresh(self, group: Group, u: Tensor, epsilon: Tensor, normals: Normals) -> None:
        """u forgets its direction within L."""
        d = u.shape[1]
        refresh(u, normals()[0], (torch.expm1(2 * epsilon / self._distance(group, d)) / d).sqrt())

    def _distance(self, group: Group, d: int) -> Tensor:
        """L of each chain."""
        if group["L"] is not None:
            return torch.full((1, 1), group["L"], dtype=torch.float64, device=group["params"][0].device)
        return self.by_chain("L", math.sqrt(d)).double() * (1.0 if group["frozen"] else _ON_ITS_WAY)

    def adapt_by_energy(self, group: Group, V: float, epsilon: Tensor, error: Tensor, finite: Tensor) -> None:
        """lr, so that ΔE² is d V."""
        d = self._its_rows(group).theta.shape[1]
        xi = error.square() / (d * V) + 1e-8
        w = torch.exp(-0.5 * (xi.log() / 9).square())
        past = _KEEP * self.by_chain("weight", 0.0).double()
        factor = ((past + w) / (past + w * xi)) ** (1 / 6)
        self.by_chain("lr", group["lr"])
        self.set_lengths(group, epsilon / math.sqrt(d) * torch.where(finite, factor, 0.5))
        self.by_chain("weight").copy_(torch.where(finite, past + w, past))

    def adapt_distance(self, group: Group) -> None:
        """Mean and spread of the weights since the last power of two of steps; L is that of the window before."""
        if group["L"] is not None:
            return
        step = group["step"]
        if step & (step - 1) == 0:
            self._set_distance(group)
            group["window"] = 0
        theta, root = self._its_rows(group).theta, self.metric()
        mean = self.by_weight("mean", lambda: theta.clone())
        if group["window"] == 0:
            mean.copy_(theta)
            self.by_chain("spread").zero_()
        group["window"] += 1
        off = theta - mean
        mean.add_(off, alpha=1 / group["window"])
        off = off if root is None else off / root
        self.by_chain("spread").add_(off.square().sum(1, keepdim=True), alpha=1 - 1 / group["window"])

    def _set_distance(self, group: Group) -> None:
        """L = √Σ Var θ, if enough steps have been seen."""
        if group["L"] is None and group["window"] >= _SETTLED:
            self.by_chain("L").copy_((self.by_chain("spread") / (group["window"] - 1)).sqrt())

    def freeze(self) -> None:
        """Keep lr and L as they are; from here on, steps that are not finite are counted anew."""
        group = self.param_groups[0]
        if not group["frozen"]:
            self._set_distance(group)
            group["frozen"] = True
            self.by_chain("rejected", 0.0).zero_()

    def stability_limit(self, curvature: float) -> float:
        """2.55/√(Nλ/T): the momentum has the speed of a canonical one, as that of HMC."""
        group = self.param_groups[0]
        return LIMIT / math.sqrt(group["num_data"] * curvature / group["temperature"])


def explores(group: Group) -> bool:
    """Whether burn-in is in its first part, of large steps."""
    return not group["frozen"] and bool(group["adapt_steps"]) and group["step"] < group["held"] * group["adapt_steps"]

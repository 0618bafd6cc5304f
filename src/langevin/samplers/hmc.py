"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011), Metropolis-adjusted, on all data.

With A^{1/2} a frozen diagonal, F = N A^{1/2} g/T and h = lr, one step is a trajectory:

    p ~ N(0, 1)
    n times     p ← p − ½ h F,  θ ← θ + h A^{1/2} p,  p ← p − ½ h F                          leapfrog
    accept with probability min(1, e^{−ΔH}),   ΔH = N (loss′ − loss)/T + ½(‖p′‖² − ‖p‖²)

n is uniform in leapfrog_steps/2 … 3 leapfrog_steps/2, the same for all chains, so that no period of the motion is hit
again and again. Step size, by chain, in burn-in: dual averaging (Hoffman & Gelman 2014) towards `target_accept`, γ =
0.05, t₀ = 10, κ = 0.75.

Target: exp(−U/T), exactly, at every lr: the reference for small networks.

Noise: that of p, and of the test; lr is the move of a weight per leapfrog step, for every N and T, which act through
the force F alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.core import random
from langevin.core.random import Stream
from langevin.samplers.base import SAMPLERS, Group, Normals
from langevin.samplers.full_batch import FullBatchSampler

_GAMMA, _DELAY, _KAPPA = 0.05, 10, 0.75


@SAMPLERS.register
class HMC(FullBatchSampler):
    """Hamiltonian Monte Carlo: `sampler.step(closure)`. A step is a trajectory of several gradients.

    Args:
        params: parameters.
        lr: the step size of the leapfrog; without it, adapted until `freeze` is called.
        num_data: number of training examples N.
        leapfrog_steps: leapfrog steps of a trajectory, on average.
        target_accept: the acceptance rate to which lr is adapted.
        adapt: whether lr is adapted although it is given; it is then the first one.
        metric: A^{1/2}, one tensor per parameter (1): the scales of the posterior, if they are known.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).

    `state` of the first parameter has "lr", "acceptance" (the probability of the last step) and "rejected" by chain:
    trajectories that were not finite, since `freeze`.
    """

    order = None
    gradients_per_step = 10  # on average, unless leapfrog_steps is given
    citation: ClassVar[str] = """@article{duane1987hybrid,
  title={Hybrid {M}onte {C}arlo}, author={Duane, Simon and Kennedy, A. D. and Pendleton, Brian J. and Roweth, Duncan},
  journal={Physics Letters B}, volume={195}, number={2}, pages={216--222}, year={1987}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        num_data: int,
        leapfrog_steps: int = 10,
        target_accept: float = 0.8,
        adapt: bool | None = None,
        metric: Sequence[Tensor] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if isinstance(leapfrog_steps, bool) or not isinstance(leapfrog_steps, int) or leapfrog_steps < 1:
            raise ValueError(f"leapfrog_steps must be an integer, 1 or more; given {leapfrog_steps!r}.")
        if not 0 < target_accept < 1:
            raise ValueError(f"target_accept must lie between 0 and 1; given {target_accept}. Write target_accept=0.8.")
        super().__init__(
            params,
            lr=0.01 if lr is None else lr,
            num_data=num_data,
            leapfrog_steps=leapfrog_steps,
            target_accept=target_accept,
            adapt=lr is None if adapt is None else adapt,
            metric=metric,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )
        self.adapts = self.param_groups[0]["adapt"]
        self.gradients_per_step = leapfrog_steps  # type: ignore[misc]

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """A trajectory, and the Metropolis test."""
        (theta,), (g,) = params, grads
        scale, h, root = group["num_data"] / group["temperature"], self.lengths(group), self.metric()
        p = normals()[0]
        rows = self._its_rows(group)
        assert rows.loss is not None
        before, loss = (theta.clone(), rows.loss, g), rows.loss

        kinetic = _half_square(p)
        half, whole = (-h * scale / 2).to(p), h.to(p)
        for _ in range(self._count(group)):
            p.addcmul_(g if root is None else root * g, half)
            theta.addcmul_(p if root is None else root * p, whole)
            loss, g = self.evaluate()
            p.addcmul_(g if root is None else root * g, half)
        error = scale * (loss - before[1]) + _half_square(p) - kinetic  # ΔH

        finite = error.isfinite()
        acceptance = torch.where(finite, torch.exp(-error.clamp_min(0)), 0)
        self.by_chain("rejected", 0.0).add_(~finite)
        self.by_chain("acceptance").copy_(acceptance)
        self.arrive(self.uniforms(group) < acceptance, before, (loss, g))
        if group["adapt"] and not group["frozen"]:
            self._adapt(group, acceptance)

    def _count(self, group: Group) -> int:
        """The leapfrog steps of this trajectory."""
        mean: int = group["leapfrog_steps"]
        low, high = (mean + 1) // 2, 3 * mean // 2
        number = random.integer(seed=group["seed"], chain=0, step=group["step"], stream=Stream.ACCEPT, block=1)
        return low + number % (high - low + 1)

    def _adapt(self, group: Group, acceptance: Tensor) -> None:
        """Dual averaging of ln lr; "shortfall" is the mean of target_accept − acceptance."""
        t = group["step"] + 1
        first = self.by_chain("first_lr", group["lr"]).double()
        shortfall, average = self.by_chain("shortfall", 0.0), self.by_chain("average_log_lr", 0.0)
        shortfall.add_((group["target_accept"] - acceptance - shortfall) / (t + _DELAY))
        log_lr = torch.log(10 * first) - math.sqrt(t) / _GAMMA * shortfall.double()
        average.add_((log_lr - average) * t**-_KAPPA)
        self.by_chain("lr", group["lr"])
        self.set_lengths(group, log_lr.exp())

    def freeze(self) -> None:
        """Keep lr at its average; from here on, trajectories that are not finite are counted anew."""
        group = self.param_groups[0]
        if group["frozen"]:
            return
        if group["adapt"] and group["step"] > 0:
            self.set_lengths(group, self.by_chain("average_log_lr").double().exp())
        group["frozen"] = True
        self.by_chain("rejected", 0.0).zero_()

    def observables(self) -> dict[str, Iterable[Tensor]]:
        """The probability to accept, and the number of trajectories that were not finite."""
        if "acceptance" not in self.state.get(self.param_groups[0]["params"][0], {}):
            return {}
        return {"acceptance": [self.by_chain("acceptance")], "rejected": [self.by_chain("rejected", 0.0)]}

    def stability_limit(self, curvature: float) -> float:
        """2/√(Nλ/T)."""
        group = self.param_groups[0]
        return 2 / math.sqrt(group["num_data"] * curvature / group["temperature"])


def _half_square(p: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(p, dim=1, keepdim=True, dtype=torch.float64)
    return norm.square() / 2

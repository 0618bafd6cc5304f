"""Metropolis-adjusted microcanonical sampling (Robnik, Cohn-Gordon & Seljak 2025), in its Langevin form, full-batch.

A step is one of `MCLMC`, whose symbols these are, with a Metropolis test. With the momentum u, a direction:

    flow        kick(b), drift, kick(1−2b), drift, kick(b) from (θ, u) to (θ′, u′)          two gradients
    test        (θ, u) ← (θ′, u′) with probability min(1, e^{−ΔE}), else (θ, −u)
    refresh     u ← normalize(u + ν z), ν² = (e^{2ε/L} − 1)/d

A flow followed by u → −u is its own inverse, and ΔE contains the logarithm of its Jacobian, so the test makes
exp(−U/T) × (u uniform) stationary at every ε.

A rejected step turns u around, so rejections have to be rare, one in fifty: then a chain runs as far before it turns as
L has it run. To that lr is adapted in burn-in, by chain: ln ε += γ (1 − (1 − α)/r), with α the probability to accept, r
= 0.02, and γ falling; its average is kept. Near the optimum ΔE is governed by few stiff directions, and rejections are
as rare as ε³. In the first part of burn-in the test is left out and steps are large, as those of MCLMC: that finds the
typical set soonest.

Target: exp(−U/T), exactly, at every lr. Where a network is so stiff that lr is unstable, an unadjusted chain heats up,
and this one is turned back.

Noise: as in MCLMC, u keeps its length, so lr is the root mean square move of a weight per step (at A = 1) whatever N
and T are; both act through the force F alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.samplers.base import SAMPLERS, Group, Normals
from langevin.samplers.microcanonical import EXPLORING, Microcanonical, explores

_FIRST, _LEAST, _KAPPA = 0.05, 0.002, 0.75  # γ at first and at last; how fast the average forgets
_MOST = 0.7  # of ln ε that a step may take away


@SAMPLERS.register
class MAMS(Microcanonical):
    """Metropolis-adjusted microcanonical sampler: `sampler.step(closure)`.

    Args:
        params: parameters.
        lr: ε/√d, about the move of a weight per step; without it, adapted until `freeze` is called.
        num_data: number of training examples N.
        L: the distance (in A^{-1/2}θ) after which u has forgotten its direction; without it, adapted as well.
        target_accept: the acceptance rate of a step to which lr is adapted.
        adapt_steps: the length of burn-in, whose first 70 % are large steps without a test; `lv.sample` gives it.
        adapt: whether lr is adapted although it is given; it is then the first one.
        metric: A^{1/2}, one tensor per parameter (1): the scales of the posterior, if they are known.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).

    `by_chain(name)` has the adapted "lr" and "L", the "acceptance" probability of the last step, and "rejected": the
    steps that were not finite, since `freeze`.
    """

    order = None
    citation: ClassVar[str] = """@article{robnik2025metropolis,
  title={Metropolis Adjusted Microcanonical {H}amiltonian {M}onte {C}arlo}, author={Robnik, Jakob and Cohn-Gordon,
  Reuben and Seljak, Uro{\\v{s}}}, journal={arXiv preprint arXiv:2503.01707}, year={2025}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        num_data: int,
        L: float | None = None,
        target_accept: float = 0.98,
        adapt_steps: int | None = None,
        adapt: bool | None = None,
        metric: Sequence[Tensor] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        if not 0 < target_accept < 1:
            raise ValueError(
                f"target_accept must lie between 0 and 1; given {target_accept}. Write target_accept=0.98."
            )
        super().__init__(
            params,
            lr,
            num_data=num_data,
            L=L,
            target_accept=target_accept,
            adapt_steps=adapt_steps,
            adapt=adapt,
            tested=0,
            metric=metric,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """Flow, test, refresh."""
        (theta,), (g,) = params, grads
        if group["adapt"] and explores(group):
            epsilon, error, finite = self.unadjusted(group, theta, g, normals)
            self.adapt_by_energy(group, EXPLORING, epsilon, error, finite)
            self.adapt_distance(group)
            return
        loss, u = self._its_rows(group).loss, self.momentum()
        assert loss is not None
        epsilon, before, turned = self.lengths(group) * math.sqrt(theta.shape[1]), (theta.clone(), loss, g), -u
        loss, g, error = self.flow(group, theta, g, u, epsilon)
        finite = error.isfinite()
        acceptance = torch.where(finite, torch.exp(-error.clamp_min(0)), 0)
        accepted = self.uniforms(group) < acceptance
        u.copy_(torch.where(accepted, u, turned))
        self.arrive(accepted, before, (loss, g))
        self.by_chain("acceptance").copy_(acceptance)
        self.by_chain("rejected", 0.0).add_(~finite)
        self.refresh(group, u, epsilon, normals)
        if not group["frozen"]:
            self._adapt(group, acceptance)

    def _adapt(self, group: Group, acceptance: Tensor) -> None:
        """lr, by the acceptance rate, and its average; L, by the spread of the weights."""
        if group["adapt"]:
            group["tested"] += 1
            gain = max(_FIRST / math.sqrt(group["tested"]), _LEAST)
            change = gain * (1 - (1 - acceptance) / (1 - group["target_accept"]))
            log_lr = self.lengths(group).log() + change.clamp_min(-_MOST)
            self.by_chain("lr", group["lr"])
            self.set_lengths(group, log_lr.exp())
            average = self.by_chain("average_log_lr", 0.0)
            average.add_((log_lr - average) * group["tested"] ** -_KAPPA)
        self.adapt_distance(group)

    def freeze(self) -> None:
        """Keep lr at its average, and L; from here on, steps that are not finite are counted anew."""
        group = self.param_groups[0]
        if not group["frozen"] and group["tested"] > 0:
            self.set_lengths(group, self.by_chain("average_log_lr").double().exp())
        super().freeze()

    def observables(self) -> dict[str, Iterable[Tensor]]:
        """The probability to accept, and the number of steps that were not finite."""
        if "acceptance" not in self.state.get(self.param_groups[0]["params"][0], {}):
            return {}
        return {"acceptance": [self.by_chain("acceptance")], "rejected": [self.by_chain("rejected", 0.0)]}

"""Overdamped Langevin dynamics with a preconditioner A: the base of SGLD, pSGLD, KSGLD, BNPSGLD, NLD and SNGD.

    θ ← θ − ε A g + √(2εT/N) A^{1/2} η + (εT/N) Γ                    lr = ε, Γᵢ = Σⱼ ∂Aᵢⱼ/∂θⱼ where available

Target: exp(−U/T) if A is constant or Γ is included, up to a bias of order ε. While A adapts without Γ the target is
biased, so `freeze()` (called by `sample` at the end of burn-in) makes A constant: from then on Γ = 0 is exact.

In the first steps a preconditioner has seen few batches, and what they leave out it takes for flat. So some rest until
they have seen enough, and raise lr from 0 to its value over the next `warmup` steps (`Preconditioner.pace`).
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from langevin.core.numbers import add_each, root
from langevin.core.posterior import Posterior
from langevin.core.random import Source, Stream
from langevin.kernels.updates import Kernel
from langevin.preconditioners import Identity, NoiseOnly, Preconditioner
from langevin.samplers.base import Group, Normals, Sampler

Precondition = Literal["both", "noise"]
_PRECONDITIONED = {"both": lambda preconditioner: preconditioner, "noise": NoiseOnly}


class Langevin(Sampler):
    """A Langevin sampler with its own copy of the given preconditioner."""

    preconditioner: Preconditioner

    @abstractmethod  # a subclass chooses its preconditioner
    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        preconditioner: Preconditioner,
        precondition: Precondition = "both",
        seed: int,
        chain: int | Sequence[int],
        **settings: Any,
    ) -> None:
        if precondition not in _PRECONDITIONED:
            raise ValueError(f'precondition={precondition!r}: choose "both" or "noise".')
        if not isinstance(preconditioner, Preconditioner):
            raise ValueError(
                f"preconditioner={preconditioner!r} is not a langevin.preconditioners.Preconditioner; write "
                f"preconditioner=lv.preconditioners.KFAC()."
            )
        self.preconditioner = _PRECONDITIONED[precondition](copy.deepcopy(preconditioner))
        self._follow_preconditioner()
        super().__init__(params, lr=lr, num_data=num_data, seed=seed, chain=chain, frozen=False, **settings)
        if not isinstance(chain, int) and not self.stackable:
            raise ValueError(
                f"{type(self).__name__} looks at whole layers, so its chains can't be stacked; given chain={chain}. "
                f'Use one sampler and one model per chain: lv.sample(…, chains={len(chain)}, mode="sequential").'
            )

    def _follow_preconditioner(self) -> None:
        self.stackable = self.shardable = self.preconditioner.elementwise
        self.adapts = self.preconditioner.adapts

    def bind(self, posterior: Posterior, data: Any = None) -> None:
        """Bind the preconditioner to the model and the data."""
        self.preconditioner.bind(posterior, [p for group in self.param_groups for p in group["params"]], data)

    def freeze(self) -> None:
        """Keep A constant from here on."""
        if not (self.adapts and self.preconditioner.freezable()):
            return
        for group in self.param_groups:
            if group["step"] == 0:
                raise ValueError(
                    f"{type(self).__name__} can't be frozen before its first step: its preconditioner is not estimated "
                    f"yet. Write lv.sample(…, burn_in=1000), or lv.sample(…, freeze=False) to adapt throughout."
                )
            if self.preconditioner.pace(self.state, group["params"]) < 1:
                warnings.warn(
                    f"{type(self).__name__} is frozen after {group['step']} steps, before the warm-up of its "
                    f"preconditioner has ended, so A is uncertain. Write burn_in=1000 (warmup=0 for no warm-up).",
                    stacklevel=2,
                )
            group["frozen"] = True

    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """θ ← θ − ε A g + √(2εT/N) A^{1/2} η + (εT/N) Γ."""
        lr, temperature, num_data = group["lr"], group.get("temperature", 0.0), group["num_data"]
        a, state = self.preconditioner, self.state
        gamma = None
        if not group["frozen"]:
            a.update(state, group, params, grads)
            if (pace := a.pace(state, params)) != 1:
                lr = lr * pace
            if pace == 0 or (not isinstance(lr, Tensor) and lr == 0):
                return
            gamma = a.divergence(state, group, params) if temperature > 0 else None

        eta = normals() if temperature > 0 else None
        a.move(state, group, params, grads, eta, rate=lr, spread=root(2 * lr * temperature / num_data))
        if gamma is not None:
            add_each(params, gamma, lr * temperature / num_data)

    def kernel(self, group: Group, params: list[Tensor]) -> Kernel | None:
        """That of the preconditioner."""
        lr, temperature = group["lr"], group.get("temperature", 0.0)
        return self.preconditioner.kernel(
            self.state, group, params, rate=lr, spread=math.sqrt(2 * lr * temperature / group["num_data"])
        )

    def finish(self) -> None:
        """Discard the preconditioner's statistics of the mini-batch."""
        group = self.param_groups[0]
        self.preconditioner.finish(group["step"], group["frozen"])

    def stability_limit(self, curvature: float) -> float:
        """That of the preconditioner; 2/λ without one."""
        return self.preconditioner.stability_limit(curvature, self.param_groups[0])

    def gradient_noise_temperature(self, variance: float) -> float:
        """ε N a Var(g)/2, with a the mean of A's diagonal; NaN before the first step of an adaptive A."""
        group = self.param_groups[0]
        return float(group["lr"] * group["num_data"] * self._mean_scale() * variance / 2)

    def _mean_scale(self) -> float:
        """tr A/dim, estimated by zᵀAz with random signs z (Hutchinson)."""
        if isinstance(self.preconditioner, Identity):
            return 1.0
        total, count = 0.0, 0
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if group["step"] == 0 or not params:
                return math.nan
            signs = [
                torch.where(Source(0, 0, i, Stream.SIGNS).normal(p) < 0, -1.0, 1.0).to(p) for i, p in enumerate(params)
            ]
            scaled = self.preconditioner.drift(self.state, group, params, signs)
            total += sum(float((z * az).sum()) for z, az in zip(signs, scaled, strict=True))
            count += sum(p.numel() for p in params)
        return total / count

    def __getstate__(self) -> dict[str, Any]:
        """Includes the preconditioner's settings; a copy has to be bound again."""
        return {**super().__getstate__(), "preconditioner": self.preconditioner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "preconditioner" in self.__dict__:
            self._follow_preconditioner()

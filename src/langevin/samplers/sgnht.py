"""Stochastic gradient Nosé–Hoover thermostat (Ding et al. 2014), with one thermostat per weight.

With ℓ the lr at construction, h = lr/ℓ, D = −log(momentum), κ = thermostat_rate, s = 1 (max_speed=None, the default:
Gaussian kinetic energy) or √(1 + (ℓu/max_speed)²) (relativistic), β = D + ξ:

    u ← u − (h/2) ℓ N g
    u ← e^{−βh} u + √(DT (1−e^{−2βh})/β) η                 (relativistic: see `thermostat`)
    u ← u − (h/2) ℓ N g
    θ ← θ + h ℓ u/s
    ξ ← ξ + h κ (u²/s² − T/s³)

Target: exp(−U/T), and independently ξ ~ N(B/(2T), κT), B = h ℓ²N²Var(g): ξ grows until the friction dissipates the
mini-batch noise, if its variance is constant. The bias is of second order in h; `integrator="fused"` (see `thermostat`)
has one more, 0.1 % at momentum 0.9 and 15 % at 0.25, that does not vanish with lr.

Noise: u has variance T, so lr is the typical move of a weight per step at T = 1, for every N; a larger N strengthens
the force of the gradient on u, not the noise. The injected noise does not depend on ξ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from langevin.samplers.base import SAMPLERS
from langevin.samplers.integrators import Integrator
from langevin.samplers.thermostat import Thermostat


@SAMPLERS.register
class SGNHT(Thermostat):
    """Langevin dynamics with momentum and an adaptive friction D + ξ, which may become negative.

    Args:
        params: parameters or parameter groups.
        lr: ℓ, the typical move of a weight per step.
        num_data: number of training examples N.
        momentum: the fraction of u that remains after a step at h = 1 and ξ = 0, in (0, 1).
        max_speed: the largest move of a weight per step, above lr; None for no limit.
        thermostat_rate: κ; `"auto"` is (D/10)².
        integrator: `"symmetric"` or `"fused"` (see `thermostat`).
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    order = 2
    shows_order = False
    reduces_noise = False
    citation: ClassVar[str] = """@inproceedings{ding2014bayesian,
  title={Bayesian sampling using stochastic gradient thermostats}, author={Ding, Nan and Fang, Youhan and
  Babbush, Ryan and Chen, Changyou and Skeel, Robert D and Neven, Hartmut},
  booktitle={Advances in Neural Information Processing Systems 27}, pages={3203--3211}, year={2014}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        momentum: float = 0.9,
        max_speed: float | None = None,
        thermostat_rate: float | Literal["auto"] = "auto",
        integrator: Integrator = "symmetric",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            momentum=momentum,
            max_speed=max_speed,
            thermostat_rate=thermostat_rate,
            integrator=integrator,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

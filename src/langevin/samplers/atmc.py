"""Adaptive thermostat Monte Carlo (Heek & Kalchbrenner 2019), with corrections to the printed equations.

With ℓ the lr at construction, h = lr/ℓ, D = −log(momentum), κ = thermostat_rate, s = √(1 + (ℓu/max_speed)²)
(relativistic kinetic energy; 1 if max_speed is None), α = max(D − ξ, 0), β = α + ξ = max(D, ξ):

    u ← u − (h/2) ℓ N g
    u ← F(h/2) ∘ (u + √(2αTh) η) ∘ F(h/2)                  F solves u̇ = −βu/s; exact if max_speed is None
    u ← u − (h/2) ℓ N g
    θ ← θ + h ℓ u/s
    ξ ← ξ + h κ (u²/s² − T/s³)

Target: exp(−U/T). The thermostat ξ estimates the noise of the mini-batches; the injected noise α makes up the
difference to D, and where the mini-batch noise exceeds D, the friction grows instead. The bias is of second order in h.
`integrator="fused"` (see `thermostat`), the paper's form, is too hot where mini-batch noise dominates: by 7 % in
variance at ξ = 0.9 and 20 % at ξ = 1.6, where `"symmetric"` is within 1 %. The paper's settings: lr=3e-4,
max_speed=1e-3, momentum=0.9, thermostat_rate=1e-6, cosine cycles with warm restarts whose last iterate is the sample.

Noise: u has variance about T, so lr is the typical move of a weight per step at T = 1, for every N (relativistic: 0.93
of it); a larger N strengthens the force of the gradient on u, not the noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from langevin.samplers.base import SAMPLERS
from langevin.samplers.integrators import Integrator
from langevin.samplers.thermostat import Thermostat


@SAMPLERS.register
class ATMC(Thermostat):
    """Langevin dynamics with bounded speed that reduces the injected noise by the noise of the mini-batches.

    Args:
        params: parameters or parameter groups.
        lr: ℓ, the typical move of a weight per step.
        num_data: number of training examples N.
        momentum: the largest fraction of u that remains after a step at h = 1, in (0, 1).
        max_speed: the largest move of a weight per step, above lr; `"auto"` is 10/3 lr, None no limit.
        thermostat_rate: κ; `"auto"` is (D/10)².
        integrator: `"symmetric"` or `"fused"` (see `thermostat`).
        temperature: T. At T = 0 the friction grows without bound: it is not an optimizer.
        seed: random seed of the noise.
        chain: the chain's number, or a sequence of them (see `Sampler`).
    """

    shows_order = False
    reduces_noise = True
    citation: ClassVar[str] = """@article{heek2019bayesian,
  title={Bayesian inference for large scale image classification}, author={Heek, Jonathan and Kalchbrenner, Nal},
  journal={arXiv preprint arXiv:1908.03491}, year={2019}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        momentum: float = 0.9,
        max_speed: float | Literal["auto"] | None = "auto",
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

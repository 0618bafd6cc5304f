"""SGLD preconditioned by K-FAC (Palacci & Hess 2018; noisy K-FAC: Zhang et al. 2018).

    A = (Ā ⊗ G)⁻¹ layer by layer, damped (see `preconditioners.kfac`)
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η                                                                       lr = ε

Target: exp(−U/T) once frozen, up to a bias of order ε. With `precondition="noise"` only the noise is preconditioned,
as in the paper's experiments: then the target is not the posterior, and at T = 0 it is SGD. The paper's exact update,
noise F⁻¹η of half the variance, is `precondition="noise", noise_power=1.0, temperature=0.5`: for reproduction only.

Noise: its standard deviation is proportional to √(lr·T/N), its covariance to the A of the drift: larger along flat
directions of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from langevin.preconditioners import KFAC, made_from
from langevin.samplers.base import SAMPLERS
from langevin.samplers.langevin import Langevin, Precondition


@SAMPLERS.register
class KSGLD(Langevin):
    """Langevin dynamics in the metric of every layer's Kronecker-factored Fisher.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        precondition: `"both"` drift and noise, or only the `"noise"`.
        temperature: T.
        seed: random seed of the noise and the sampled labels.
        chain: the chain's number.
        options: arguments of `lv.preconditioners.KFAC`, such as `damping=1e-2`.
    """

    stackable = shardable = False
    adapts = True
    citation: ClassVar[str] = """@article{palacci2018scalable,
  title={Scalable natural gradient {L}angevin dynamics in practice}, author={Palacci, Henri and Hess, Henry},
  journal={arXiv preprint arXiv:1806.02855}, year={2018}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        precondition: Precondition = "both",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=made_from(KFAC, options, "KSGLD"),
            precondition=precondition,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

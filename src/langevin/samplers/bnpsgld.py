"""SGLD with batch-normalization preconditioning (Lange et al. 2023).

    A = P Pᵀ of every layer's input statistics (see `preconditioners.bnp`)
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η                                                                       lr = ε

Target: exp(−U/T) once frozen, up to a bias of order ε. The network needs no normalization layer: A has the effect on
the update that normalizing a layer's inputs would have.

Noise: its standard deviation is proportional to √(lr·T/N), its covariance to the A of the drift: larger for weights of
inputs with small variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from langevin.preconditioners import BNP, made_from
from langevin.samplers.base import SAMPLERS
from langevin.samplers.langevin import Langevin


@SAMPLERS.register
class BNPSGLD(Langevin):
    """Langevin dynamics in the metric of normalized layer inputs.

    Args:
        params: parameters or parameter groups.
        lr: ε.
        num_data: number of training examples N.
        temperature: T.
        seed: random seed of the noise.
        chain: the chain's number.
        options: arguments of `lv.preconditioners.BNP`, such as `average=0.9`.
    """

    stackable = shardable = False
    adapts = True
    citation: ClassVar[str] = """@article{lange2023batch,
  title={Batch normalization preconditioning for stochastic gradient {L}angevin dynamics},
  author={Lange, Susanna and Deng, Wei and Ye, Qiang and Lin, Guang},
  journal={Journal of Machine Learning}, volume={2}, number={1}, pages={65--82}, year={2023}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=made_from(BNP, options, "BNPSGLD"),
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

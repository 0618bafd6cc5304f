"""SGLD with batch-normalization preconditioning (Lange et al. 2023).

    A = P Pᵀ of every layer's input statistics (see `preconditioners.bnp`)
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η                                                                       lr = ε

Target: exp(−U/T) once frozen, up to a bias of order ε. The network has no normalization layer: A does in the step what
such a layer does in the forward pass.

Noise: its standard deviation grows with √lr and √T and falls with √N; weights of inputs with little variance get more
of it, and a bias gets the part that shifts of its layer's inputs call for, in step with their drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from langevin.preconditioners import BNP, made_from
from langevin.samplers.base import SAMPLERS, Noise
from langevin.samplers.langevin import Langevin


@SAMPLERS.register
class BNPSGLD(Langevin):
    """Langevin dynamics in the metric of normalized layer inputs.

    Args:
        params: parameters or groups of them.
        lr: ε.
        num_data: number of training examples N.
        noise: of `"gaussian"` or, faster, `"rademacher"` numbers (see `Sampler`).
        temperature: T.
        seed: of the noise.
        chain: the number of this chain.
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
        noise: Noise = "gaussian",
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
            noise=noise,
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

"""Natural Langevin dynamics: SGLD preconditioned by the full Fisher information (Smith et al. 2018, corrected).

    A = G⁻¹,   G = F(θ) + δI (see `preconditioners.fisher`)
    θ ← θ − ε A g + √(2εT/N) A^{1/2} η + (εT/N) Γ                                                            lr = ε

Target, by `target`, up to a bias of order ε: `"posterior"` exp(−U/T); `"jeffreys"` exp(−U/T) det G^{1/2}, which is
invariant under reparameterization; `"as-printed"`, without Γ, has no closed form (in one dimension exp(−U/T) G): the
paper's proof reads the Euler step as a Stratonovich equation. Once frozen, `"posterior"` and `"as-printed"` sample
exp(−U/T); `freeze` has no effect on `"jeffreys"`.

Noise: its standard deviation is proportional to √(lr·T/N), its covariance to the A of the drift: larger along flat
directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from langevin.preconditioners import Fisher, made_from
from langevin.samplers.base import SAMPLERS
from langevin.samplers.langevin import Langevin


@SAMPLERS.register
class NLD(Langevin):
    """Langevin dynamics in the Fisher metric, for models of up to a few thousand weights.

    Args:
        params: the parameters, in one parameter group.
        lr: ε.
        num_data: number of training examples N.
        target: `"posterior"`, `"jeffreys"` or `"as-printed"`; the first two need `kind="exact"`, no moving average, and
            at most a few hundred weights.
        temperature: T.
        seed: random seed of the noise, the sampled labels and the Fisher's batches.
        chain: the chain's number.
        options: arguments of `lv.preconditioners.Fisher`, such as `damping=1e-2`.
    """

    stackable = shardable = False
    adapts = True
    citation: ClassVar[str] = """@article{smith2018stochastic,
  title={Stochastic natural gradient descent draws posterior samples in function space},
  author={Smith, Samuel L and Duckworth, Daniel and Le, Quoc V and Sohl-Dickstein, Jascha},
  journal={arXiv preprint arXiv:1806.09597}, year={2018}}"""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        num_data: int,
        target: Literal["as-printed", "jeffreys", "posterior"] = "posterior",
        temperature: float = 1.0,
        seed: int = 0,
        chain: int | Sequence[int] = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            preconditioner=made_from(Fisher, {"target": target, **options}, "NLD"),
            temperature=temperature,
            seed=seed,
            chain=chain,
        )

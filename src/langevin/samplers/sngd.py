"""Stochastic natural gradient descent as a sampler (Smith et al. 2018, corrected).

    A = (F(θ) + δI)⁻¹ (see `preconditioners.fisher`)
    θ ← θ − ε A g                                                                                            lr = ε

Target: none exactly. The only noise is that of the mini-batches; the batch size B sets the nominal temperature

    T = (ε/2)(N/B − 1)

and the temperature along a direction of Fisher eigenvalue λ is Tκ/(1 − εκ/2), κ = λ/(λ+δ). This assumes a fresh
random subset at every step: reshuffling once per epoch anticorrelates the noise (0.47 was measured at nominal 0.95).
`sample` draws such subsets, and so does `batch`, for a custom loop.

Noise: none is injected, and there is no `temperature` option; the noise grows with lr and with N/B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from langevin.core import random
from langevin.core.batches import Batches, LoaderBatches, as_batches
from langevin.core.posterior import Posterior
from langevin.preconditioners import Fisher, made_from
from langevin.samplers.base import SAMPLERS
from langevin.samplers.langevin import Langevin


@SAMPLERS.register
class SNGD(Langevin):
    """Natural gradient descent whose iterates are treated as samples.

    Args:
        params: the parameters, in one parameter group.
        lr: ε.
        num_data: number of training examples N.
        seed: random seed of the sampled labels and the batches.
        chain: the chain's number.
        options: arguments of `lv.preconditioners.Fisher`, such as `damping=1e-2`.
    """

    target = "none"
    order = None
    stackable = shardable = False
    adapts = True
    injects_noise = False
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
        seed: int = 0,
        chain: int | Sequence[int] = 0,
        **options: Any,
    ) -> None:
        if options.get("target", "as-printed") != "as-printed":
            raise ValueError(f"SNGD has no target={options['target']!r}: no noise is injected. Use lv.NLD(target=…).")
        fisher = made_from(Fisher, options, "SNGD")
        super().__init__(params, lr, num_data=num_data, preconditioner=fisher, seed=seed, chain=chain)

    def bind(self, posterior: Posterior, data: Any = None) -> None:
        """Bind the preconditioner to the model and the data, which must not be a DataLoader."""
        if isinstance(data, DataLoader | LoaderBatches):
            raise ValueError(
                "SNGD needs a fresh random subset at every step; with a DataLoader that reshuffles once per epoch its "
                "temperature is about half the nominal one. Pass the data set itself: lv.sample(posterior, dataset, …)."
            )
        super().bind(posterior, data)
        device = self.param_groups[0]["params"][0].device
        self._batches = data if isinstance(data, Batches) else as_batches(data, 1, 0, device)

    def batch(self, size: int) -> tuple[Any, Any]:
        """The mini-batch of the next step, for a custom loop: a fresh random subset of the bound data."""
        where = {name: self.param_groups[0][name] for name in ("seed", "chain", "step")}
        return self._batches.take(random.random_subset(self.param_groups[0]["num_data"], size, **where))

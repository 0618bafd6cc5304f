"""Stochastic natural gradient descent as a sampler (Smith et al. 2018, and errata).

    A = (F(θ) + δI)⁻¹ (see `preconditioners.fisher`)
    θ ← θ − ε A g                                                                                            lr = ε

Target: none exactly. The mini-batch noise is the noise, and the batch size B sets the nominal temperature

    T = (ε/2)(N/B − 1)

which a direction of Fisher eigenvalue λ has as T·λ/(λ+δ)/(1 − ε/2). It takes a fresh random subset at every step:
reshuffling once an epoch anticorrelates the noise (0.47 was measured at nominal 0.95). `sample` draws such subsets, and
so does `batch`, for a loop of your own. Raising N/B or lr raises the noise; no `temperature`.
"""

from __future__ import annotations

import math
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
    """Natural gradient descent whose iterates are taken for samples.

    Args:
        params: the parameters, in one group.
        lr: ε.
        num_data: number of training examples N.
        seed: of the sampled labels and the batches.
        chain: the number of this chain.
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
        """Show it the model and the data, which must not be a loader that goes through them epoch by epoch."""
        if isinstance(data, DataLoader | LoaderBatches):
            raise ValueError(
                "SNGD's temperature needs a fresh random subset at every step; a DataLoader that reshuffles once an "
                "epoch makes it about half as hot. Give the data set itself: lv.sample(posterior, dataset, …)."
            )
        super().bind(posterior, data)
        device = self.param_groups[0]["params"][0].device
        self._batches = data if isinstance(data, Batches) else as_batches(data, 1, 0, device)

    def batch(self, size: int) -> tuple[Any, Any]:
        """The mini-batch of the coming step, for a loop of your own: a fresh random subset of the bound data."""
        where = {name: self.param_groups[0][name] for name in ("seed", "chain", "step")}
        return self._batches.take(random.random_subset(self.param_groups[0]["num_data"], size, **where))


def temperature_of(lr: float, num_data: int, batch_size: int) -> float:
    """The nominal temperature of `SNGD`, (ε/2)(N/B − 1).

    >>> temperature_of(lr=0.02, num_data=1000, batch_size=10)
    0.99
    """
    if not 1 <= batch_size <= num_data:
        raise ValueError(f"batch_size must lie in 1 … num_data={num_data}; given batch_size={batch_size}.")
    return lr / 2 * (num_data / batch_size - 1)


def batch_size_for(temperature: float, lr: float, num_data: int) -> int:
    """The batch size at which `SNGD` has about that temperature, ⌈N/(2T/ε + 1)⌉.

    >>> batch_size_for(temperature=0.99, lr=0.02, num_data=1000)
    10
    """
    hottest = temperature_of(lr, num_data, 1)
    if not 0 <= temperature <= hottest:
        raise ValueError(
            f"With lr={lr} and num_data={num_data} batches of 1 … {num_data} give temperatures {hottest:.3g} … 0; "
            f"asked for temperature={temperature}. "
            + (f"Take lr={2 * temperature / max(num_data - 1, 1):.3g} or more." if temperature > 0 else "")
        )
    return math.ceil(num_data / (2 * temperature / lr + 1) - 1e-9)

"""The evidence lower bound (ELBO) of any approximation with an entropy."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch.utils._pytree import tree_map

from langevin.approximations.distributions import WeightDistribution
from langevin.core.arguments import COUNT, SEED, validated
from langevin.core.batches import as_batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.core.statistics import Estimate


@validated(draws=COUNT, seed=SEED, batch_size=COUNT)
@torch.no_grad()
def elbo(
    q: WeightDistribution, posterior: Posterior, data: Any, *, draws: int = 100, seed: int = 0, batch_size: int = 4096
) -> Estimate:
    """E_q[log p(data, w) − log q(w)] ≤ log p(data), over all data, by independent draws; with its standard error.

    Both terms are taken at the same draws, so the error vanishes as q approaches the posterior. The estimate is
    unbiased: it may exceed log p(data) by about its standard error.
    """
    if q.is_point:
        raise ValueError("A point estimate has no entropy, so there is no bound. Fit lv.MeanField(), for example.")
    if draws < 2:
        raise ValueError(f"draws={draws}: a standard error takes at least two.")
    posterior = copy.deepcopy(posterior)
    posterior.eval()
    device = next(posterior.parameters()).device
    batches = as_batches(data, None, 0, device)
    values = []
    for number in range(draws):
        weights = q.draw(seed, number)
        load_tensors(posterior, weights)
        energy = 0.0
        for batch in batches.full_pass(batch_size):
            x, y = tree_map(lambda t: t.to(device), batch)
            energy += float(posterior.loss(x, y)) * batch_size_of(y)  # summed over batches this is U
        values.append(-energy - float(q.log_prob(weights)))
    series = torch.tensor(values, dtype=torch.float64, device="cpu")
    return Estimate(float(series.mean()), float(series.std() / math.sqrt(draws)))

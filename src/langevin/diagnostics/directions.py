"""The temperature along the softest directions: what a mean over all weights hides.

For any fixed point a and direction v, integration by parts gives E[(v·(θ−a)) (v·∇U)] = T |v|² under exp(−U/T). The mean
over all directions can be T while the few soft ones, along which predictions vary most, are cold or hot: thermostats
hold the mean, and mini-batch noise that is correlated between weights upsets the rest. So for every chain a and v are
the mean and the principal components of the other chains' samples (of a single chain's first half, then tested on the
second), which makes them independent of what they are tested on, and ∇U is that of all data. That costs one pass over
the data for every sample. It sees directions in which the samples do spread; one that is frozen altogether shows in no
sample.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.core.batches import as_batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.core.statistics import Estimate, mean_and_error

_LARGEST = 2 << 30  # bytes of samples that are put in memory


@dataclass(frozen=True)
class Direction:
    """A principal component of the samples: their standard deviation along it, and the temperature there."""

    std: float
    temperature: Estimate


def direction_temperatures(
    run: Any, posterior: Posterior, data: Any, *, directions: int = 3, batch_size: int = 1024
) -> list[Direction]:
    """The temperature along the softest directions of a run, softest first, each to be compared with T.

    The posterior and the data are those that were sampled; the posterior's own weights are left as they are.
    """
    names = list(posterior.trainable_parameters())
    chains = [torch.stack([_flat(sample, names) for sample in run.chain(c)]) for c in run.chains]
    if not chains or sum(map(len, chains)) < 8:
        raise ValueError(f"Directions need 8 samples or more; the run has {sum(map(len, chains))}.")
    if sum(chain.nbytes for chain in chains) > _LARGEST:
        raise ValueError("The samples do not fit in memory; sample a few layers: Posterior(…, sampled='head.*').")
    posterior = copy.deepcopy(posterior)
    if len(chains) == 1:
        half = len(chains[0]) // 2
        folds = [(chains[0][:half], chains[0][half:])]
    else:
        folds = [(torch.cat(chains[:c] + chains[c + 1 :]), chain) for c, chain in enumerate(chains)]
    products, spreads = [], []
    for others, chain in folds:
        anchor = others.mean(0)
        components = torch.linalg.svd(others - anchor, full_matrices=False).Vh[:directions]  # unit rows
        slopes = torch.stack([_gradient(posterior, names, theta, data, batch_size) for theta in chain])
        along = (chain - anchor) @ components.T
        products.append(along * (slopes @ components.T))
        spreads.append(along.std(0))
    return [
        Direction(
            std=float(torch.stack(spreads)[:, k].mean()),
            temperature=_over([mean_and_error(product[:, k].tolist()) for product in products]),
        )
        for k in range(products[0].shape[1])
    ]


def _gradient(posterior: Posterior, names: list[str], theta: Tensor, data: Any, batch_size: int) -> Tensor:
    """∇U at θ, over all data."""
    parameters = posterior.trainable_parameters()
    pieces = torch.split(theta, [parameters[name].numel() for name in names])
    load_tensors(posterior, {n: piece.reshape(parameters[n].shape) for n, piece in zip(names, pieces, strict=True)})
    posterior.zero_grad()
    device = next(iter(parameters.values())).device
    for x, y in as_batches(data, 1, 0, device).full_pass(batch_size):
        share = batch_size_of(y) / posterior.num_data
        (posterior.loss(x, y) * share).backward()  # type: ignore[no-untyped-call]
    grads = [parameters[n].grad for n in names]
    flat = torch.cat([g.flatten() for g in grads if g is not None])
    return posterior.num_data * flat.double().cpu()


def _flat(sample: dict[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([sample[name].flatten().double() for name in names])


def _over(estimates: list[Estimate]) -> Estimate:
    n = len(estimates)
    return Estimate(sum(e.mean for e in estimates) / n, sum(e.error**2 for e in estimates) ** 0.5 / n)

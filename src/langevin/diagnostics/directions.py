"""The virial temperature along the softest directions, which a mean over all weights can hide.

For any fixed point a and direction v, integration by parts gives E[(v·(θ−a)) (v·∇U)] = T |v|² under exp(−U/T). The mean
over all directions can be T while the few soft ones, along which predictions vary most, are too cold or too hot: a
thermostat controls only the mean, and mini-batch noise is correlated between weights. For every chain, a and v are the
mean and the principal components of the other chains' samples (for a single chain: of its first half, tested on its
second half), so they are independent of the samples that they are tested on. ∇U is over all data, which costs one pass
per sample. A direction in which the samples do not vary at all is not found.
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
from langevin.core.statistics import Estimate
from langevin.diagnostics.temperature import virial_temperature

_LARGEST = 2 << 30  # bytes of samples in memory


@dataclass(frozen=True)
class Direction:
    """A principal component of the samples: their standard deviation along it, and the temperature there."""

    std: float
    temperature: Estimate


def direction_temperatures(
    run: Any, posterior: Posterior, data: Any, *, directions: int = 3, batch_size: int = 1024
) -> list[Direction]:
    """The temperature along the softest directions of a run, softest first, each to be compared with T.

    Posterior and data are those of the run; the posterior's weights are not changed.
    """
    names = list(posterior.trainable_parameters())
    chains = [torch.stack([_flat(sample, names) for sample in run.chain(c)]) for c in run.chains]
    if not chains or sum(map(len, chains)) < 8:
        raise ValueError(f"Directions need at least 8 samples; the run has {sum(map(len, chains))}.")
    if sum(chain.nbytes for chain in chains) > _LARGEST:
        raise ValueError("The samples do not fit in memory; sample fewer layers: Posterior(…, sampled='head.*').")
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
            temperature=virial_temperature(*(product[:, k].tolist() for product in products)),
        )
        for k in range(products[0].shape[1])
    ]


def _gradient(posterior: Posterior, names: list[str], theta: Tensor, data: Any, batch_size: int) -> Tensor:
    """∇U at θ, over all data."""
    parameters = posterior.trainable_parameters()
    parts = torch.split(theta, [parameters[name].numel() for name in names])
    load_tensors(posterior, {n: part.reshape(parameters[n].shape) for n, part in zip(names, parts, strict=True)})
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

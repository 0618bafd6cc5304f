"""Curvature of the loss, which limits the learning rate."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.batches import as_batches, batch_size_of
from langevin.core.posterior import Posterior
from langevin.preconditioners import Preconditioner
from langevin.preconditioners.fisher import fisher_matrix


def largest_curvature(posterior: Posterior, x: Any, y: Any, iterations: int = 30) -> float:
    """The largest absolute eigenvalue of the Hessian of the loss (U/N) on a batch, by power iteration."""
    params = list(posterior.trainable_parameters().values())
    grads = torch.autograd.grad(posterior.loss(x, y), params, create_graph=True)
    direction = [random.Source(0, 0, i, random.Stream.SIGNS).normal(p) for i, p in enumerate(params)]
    value = 0.0
    for _ in range(iterations):
        norm = float(torch.linalg.vector_norm(torch.cat([d.flatten() for d in direction])))
        if norm == 0:
            return 0.0
        direction = [d / norm for d in direction]
        product = torch.autograd.grad(grads, params, direction, retain_graph=True, allow_unused=True)
        images = [torch.zeros_like(p) if h is None else h.detach() for p, h in zip(params, product, strict=True)]
        value = float(sum((d * h).sum() for d, h in zip(direction, images, strict=True)))
        direction = images
    return abs(value)


@dataclass(frozen=True)
class Conditioning:
    """Eigenvalues of G = F + δI, ascending, and of PᵀGP for a preconditioner A = PPᵀ."""

    kind: str  # "exact" or "empirical"
    eigenvalues: Tensor
    preconditioned: Tensor | None
    damping: float  # δ; F is often singular: adding a constant to all logits changes nothing

    @property
    def condition(self) -> float:
        """λmax/λmin of G; infinite if λmin is 0 up to rounding."""
        return _ratio(self.eigenvalues)

    @property
    def preconditioned_condition(self) -> float:
        """λmax/λmin of PᵀGP; NaN without a preconditioner."""
        return math.nan if self.preconditioned is None else _ratio(self.preconditioned)


def conditioning(
    posterior: Posterior,
    data: Any,
    *,
    kind: Literal["exact", "empirical"] = "exact",
    preconditioner: Preconditioner | None = None,
    damping: float = 0.0,
    batch_size: int = 1024,
    max_parameters: int = 2000,
    updates: int = 20,
    seed: int = 0,
) -> Conditioning:
    """Condition number of F + δI at the current weights, dense and in double precision: for small models.

    F is the mean over `batch_size` random examples, with labels of the model ("exact") or of the data ("empirical").
    With δ the prior's precision over N, G approximates the curvature that a sampler sees. The preconditioner is
    unbound, `lv.preconditioners.KFAC()`; a copy is updated on `updates` mini-batches of 128.
    """
    if kind not in ("exact", "empirical"):
        raise ValueError(f'kind={kind!r}: choose "exact" or "empirical".')
    posterior = copy.deepcopy(posterior).double()
    params = list(posterior.trainable_parameters().values())
    count = sum(p.numel() for p in params)
    if count > max_parameters:
        raise ValueError(
            f"The Fisher matrix of {count:,} parameters is dense here; the limit is max_parameters={max_parameters:,}. "
            f"Sample fewer layers: Posterior(…, sampled='head.*')."
        )
    batches = as_batches(data, 1, seed, params[0].device)
    if batches.num_data is None:
        raise ValueError(
            "The Fisher matrix needs indexable data: give tensors (x, y) or a map-style data set, not a DataLoader."
        )
    size = min(batch_size, batches.num_data)
    chosen = random.random_subset(batches.num_data, size, seed=seed, chain=0, step=0, stream=random.Stream.FISHER)
    x, y = tree_map(lambda t: _double(t.to(params[0].device)), batches.take(chosen))
    metric = fisher_matrix(posterior, params, (x, y), kind, step=0)
    metric = metric + damping * torch.eye(count, dtype=metric.dtype, device=metric.device)
    root = None
    if preconditioner is not None:
        root = _root(posterior, copy.deepcopy(preconditioner), params, (x, y), updates, seed)
    return Conditioning(
        kind=kind,
        eigenvalues=torch.linalg.eigvalsh(metric),
        preconditioned=None if root is None else torch.linalg.eigvalsh(root.T @ metric @ root),
        damping=damping,
    )


def _root(
    posterior: Posterior, a: Preconditioner, params: list[Parameter], data: tuple[Any, Any], updates: int, seed: int
) -> Tensor:
    """P with A = PPᵀ, column by column, after `updates` mini-batches."""
    a.bind(posterior, params, data)
    state: dict[Any, dict[str, Any]] = {p: {} for p in params}
    group = {"lr": 1e-3, "num_data": posterior.num_data, "seed": seed, "chain": 0, "step": 0}
    given: list[Tensor] = list(params)
    size = batch_size_of(data[1])
    for step in range(updates):
        chosen = random.random_subset(size, min(128, size), seed=seed, chain=0, step=step, device=params[0].device)
        x, y = tree_map(lambda t, rows=chosen: t[rows], data)
        posterior.zero_grad()
        posterior.loss(x, y).backward()  # type: ignore[no-untyped-call]
        group["step"] = step
        a.update(state, group, given, [p.grad for p in params if p.grad is not None])
        a.finish(step + 1, False)
    with torch.no_grad():
        columns = []
        like = params[0]
        for unit in torch.eye(sum(p.numel() for p in params), dtype=like.dtype, device=like.device):
            parts = torch.split(unit, [p.numel() for p in params])
            etas = [part.reshape(p.shape) for part, p in zip(parts, params, strict=True)]
            columns.append(torch.cat([c.flatten() for c in a.noise(state, group, given, etas)]))
    a.unbind()
    return torch.stack(columns, dim=1)


def _ratio(eigenvalues: Tensor) -> float:
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    if smallest <= largest * len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps:
        return math.inf
    return largest / smallest


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor

"""The curvature of the loss, as far as the learning rate depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from langevin.posterior import Posterior
from langevin.preconditioners import Preconditioner


def largest_curvature(posterior: Posterior, x: Any, y: Any, iterations: int = 30) -> float:
    """The largest eigenvalue, in size, of the Hessian of the loss (U/N) on a batch, by power iteration."""
    params = list(posterior.sampled_parameters().values())
    grads = torch.autograd.grad(posterior.loss(x, y), params, create_graph=True)
    generator = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=generator).to(p) for p in params]
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
    """Eigenvalues of a Fisher matrix, in ascending order, without and with a preconditioner (PᵀFP, A = PPᵀ)."""

    kind: str  # "exact" or "empirical"
    eigenvalues: Tensor
    preconditioned: Tensor | None
    damping: float  # added to F before the condition number is taken: F itself may be singular

    @property
    def condition(self) -> float:
        """(λmax + δ)/(λmin + δ)."""
        raise NotImplementedError

    @property
    def preconditioned_condition(self) -> float:
        """The same of PᵀFP; nan without a preconditioner."""
        raise NotImplementedError


def conditioning(
    posterior: Posterior,
    data: Any,
    *,
    kind: Literal["exact", "empirical"] = "exact",
    preconditioner: Preconditioner | None = None,
    damping: float = 0.0,
    batch_size: int = 1024,
    max_parameters: int = 2000,
) -> Conditioning:
    """Condition number of F + δI at the posterior's present weights, dense, for small models."""
    raise NotImplementedError

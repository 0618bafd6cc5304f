"""The marginal likelihood (evidence) of a Laplace approximation, and the scale of the prior that maximizes it.

    log p(data) ≈ log p(data, ŵ) − log q(ŵ) = log p(data, ŵ) + (d/2) log 2π − ½ log det Λ        MacKay (1992)

For a linear model with Gaussian noise it is exact. With precisions a·P of the prior, Λ = P^{1/2} (M + a I) P^{1/2};
with the eigenvalues μ of M, the derivative with respect to a vanishes at

    a = γ / ŵᵀPŵ,      γ = Σ μ/(μ + a)        the number of weights that the data determine
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from langevin.approximations.laplace import Laplace
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian

_ROUNDS = 1000


def best_factor(method: Laplace, posterior: Posterior, tensors: Mapping[str, Tensor]) -> float:
    """The factor of the prior's standard deviations, a^{−1/2}, at the mode and the curvature of these tensors."""
    own = {name: prior.std**-2 for name, prior in posterior.priors().items() if isinstance(prior, Gaussian)}
    eigenvalues = _eigenvalues(method, own, tensors)
    length = sum(float(own[name] * tensors[f"mean/{name}"].double().square().sum()) for name in own)
    if not length > 0:
        raise ValueError("The marginal likelihood has no maximum: all weights of the mode are 0.")
    a = 1.0
    for _ in range(_ROUNDS):
        before, a = a, float((eigenvalues / (eigenvalues + a)).sum()) / length
        if not a > 0:
            raise ValueError("The marginal likelihood has no maximum: the data determine none of the weights.")
        if abs(a / before - 1) < 1e-9:
            break
    return float(a**-0.5)


def log_marginal_likelihood(
    posterior: Posterior, tensors: Mapping[str, Tensor], method: Laplace, energy: float
) -> float:
    """log p(data), with U(ŵ) = `energy`."""
    own = {name: prior.std**-2 for name, prior in posterior.priors().items() if isinstance(prior, Gaussian)}
    log_det = float(torch.log1p(_eigenvalues(method, own, tensors)).sum())
    count = 0
    for name, precision in own.items():
        size = tensors[f"mean/{name}"].numel()
        log_det += size * math.log(precision)
        count += size
    return -energy + 0.5 * count * math.log(2 * math.pi) - 0.5 * log_det


def _eigenvalues(method: Laplace, precisions: Mapping[str, float], tensors: Mapping[str, Tensor]) -> Tensor:
    """μ, of the curvature of the data in units of the prior's precision."""
    if "precision_root" in tensors:
        sizes = [torch.full_like(tensors[f"mean/{name}"].flatten(), p).double() for name, p in precisions.items()]
        root = tensors["precision_root"].double() / torch.cat(sizes).sqrt()[:, None]
        found = [torch.linalg.eigvalsh(root @ root.mT) * method.temperature]
    else:
        found = [
            method.temperature / t.double().square().flatten()
            for key, t in tensors.items()
            if key.startswith("scales/")
        ]
        found += [
            method.temperature / (tensors[f"variance/{name}"].double().flatten() * p)
            for name, p in precisions.items()
            if f"variance/{name}" in tensors
        ]
    return (torch.cat(found) - 1).clamp_min(0)

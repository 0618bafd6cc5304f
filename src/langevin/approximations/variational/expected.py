"""E_q[log p(w)] in closed form for normal w: the term of the KL divergence that depends on the prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.core.priors import Gaussian, Laplace, Prior


def expected_log_prob(prior: Prior, mean: Tensor, variance: Tensor) -> Tensor | None:
    """E[log p(w)] for w with these marginal moments, each weight normal; None if there is no closed form."""
    if type(prior) is Gaussian:
        return prior.log_prob(mean) - 0.5 * variance.sum() / prior.std**2
    if type(prior) is Laplace:
        # the mean of |w|, w ~ N(μ, σ²), is σ√(2/π) e^{−μ²/2σ²} + μ erf(μ/(σ√2))
        std = variance.sqrt()
        ratio = mean / std
        length = std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square())
        length = length + mean * torch.erf(ratio / math.sqrt(2))
        return -length.sum() / prior.scale - mean.numel() * math.log(2 * prior.scale)
    return None

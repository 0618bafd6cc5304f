"""Regression with homoscedastic Gaussian noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from langevin.core.likelihoods.base import LIKELIHOODS, like_output


@LIKELIHOODS.register
class Gaussian(nn.Module):
    """Regression: y = output + noise of standard deviation `std`, the dimensions of y independent.

    With `sampled=True` log(std) is a parameter of the posterior, named `likelihood.log_std`, with the given std as its
    initial value. Its prior is the posterior's prior for that name: under `Gaussian(std=1)` the noise is log-normal
    around 1, which suits standardized targets.
    """

    log_std: Tensor

    def __init__(self, std: float, *, sampled: bool = False) -> None:
        super().__init__()
        if not (math.isfinite(std) and std > 0):
            raise ValueError(f"The standard deviation must be positive; given std={std}. Write Gaussian(std=0.1).")
        value = torch.tensor(math.log(std))
        if sampled:
            self.log_std = nn.Parameter(value)
        else:
            self.register_buffer("log_std", value, persistent=False)
        self._config = {"std": std, "sampled": sampled}

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − output)/σ)² − log σ − ½log 2π over the dimensions of y."""
        output = output.to(torch.promote_types(output.dtype, torch.float32))  # under autocast it is in half precision
        residual = (like_output(repr(self), output, target) - output) * torch.exp(-self.log_std)
        log_density = -0.5 * residual.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        return log_density.flatten(1).sum(1) if log_density.dim() > 1 else log_density

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        return output, torch.exp(2 * self.log_std).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """output + σ η."""
        eta = torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)
        return output + torch.exp(self.log_std) * eta

    def output_fisher(self, output: Tensor) -> Tensor:
        """I/σ²."""
        size = output[0].numel()
        identity = torch.eye(size, dtype=output.dtype, device=output.device)
        return (torch.exp(-2 * self.log_std) * identity).expand(len(output), size, size)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self._config)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"std={self._config['std']}, sampled={self._config['sampled']}"

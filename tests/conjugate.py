"""Linear regression with known noise: posterior, evidence and ELBO in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import langevin as lv

NOISE, PRIOR = 0.7, 1.3


@dataclass
class Conjugate:
    x: Tensor  # (N, d), the features
    y: Tensor
    precision: Tensor  # of the posterior, (d, d)
    mean: Tensor

    @property
    def covariance(self) -> Tensor:
        return torch.linalg.inv(self.precision)

    @property
    def num_data(self) -> int:
        return len(self.x)

    def posterior(self) -> lv.Posterior:
        model = nn.Linear(self.x.shape[1], 1, bias=False).double()
        nn.init.zeros_(model.weight)
        return lv.Posterior(model, lv.likelihoods.Gaussian(NOISE), lv.priors.Gaussian(PRIOR), num_data=self.num_data)

    def evidence(self) -> float:
        """log N(y; 0, noise² I + prior² x xᵀ)."""
        covariance = NOISE**2 * torch.eye(len(self.x)).double() + PRIOR**2 * self.x @ self.x.T
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(self.x)).double(), covariance)
        return float(normal.log_prob(self.y[:, 0]))

    def elbo(self, mean: Tensor, covariance: Tensor) -> float:
        """The evidence minus KL(N(mean, covariance) ‖ posterior)."""
        d = len(mean)
        off = mean - self.mean
        kl = 0.5 * (
            torch.trace(self.precision @ covariance)
            + off @ self.precision @ off
            - d
            - torch.logdet(self.precision)
            - torch.logdet(covariance)
        )
        return self.evidence() - float(kl)


def conjugate(n: int = 40, d: int = 3) -> Conjugate:
    """Correlated features, so that the posterior's weights are correlated too."""
    generator = torch.Generator().manual_seed(5)
    mix = torch.eye(d).double() + 0.6 * torch.ones(d, d).double()
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) @ mix
    y = x @ torch.linspace(-1, 1, d).double() + NOISE * torch.randn(n, generator=generator, dtype=torch.float64)
    precision = x.T @ x / NOISE**2 + torch.eye(d).double() / PRIOR**2
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
    assert math.isfinite(float(mean.sum()))
    return Conjugate(x, y[:, None], precision, mean)

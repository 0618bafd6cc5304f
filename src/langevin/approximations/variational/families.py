"""The variational families: independent weights, and weights with a low-rank covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from langevin.approximations.base import APPROXIMATIONS, check_rank, count_weights
from langevin.approximations.distributions import Weights
from langevin.approximations.variational.objective import Family, inverse_softplus
from langevin.core import random
from langevin.core.posterior import Posterior


@APPROXIMATIONS.register
@dataclass(frozen=True)
class MeanField(Family):
    """q(w) = N(μ, diag σ²), σ = softplus(ρ): independent weights.

    Graves (2011), Blundell et al. (2015). Minimizing KL(q‖posterior) gives variances 1/(diagonal of the precision),
    which are too small if weights are correlated. The arguments are those of `Family`.

    >>> import langevin as lv
    >>> posterior = lv.Posterior(torch.nn.Linear(4, 3), lv.likelihoods.Categorical(), num_data=100)
    >>> q = MeanField(init_std=0.1).of(posterior)
    >>> list(q.trainable_parameters())
    ['mean/weight', 'mean/bias', 'rho/weight', 'rho/bias']
    >>> optimizer = torch.optim.Adam(q.trainable_parameters().values(), lr=1e-2)
    >>> q.loss(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)).backward()  # −ELBO/N
    """

    citation: ClassVar[str] = """@inproceedings{blundell2015weight,
  title={Weight uncertainty in neural networks},
  author={Blundell, Charles and Cornebise, Julien and Kavukcuoglu, Koray and Wierstra, Daan},
  booktitle={International Conference on Machine Learning}, pages={1613--1622}, year={2015}}"""

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """Means at the weights, standard deviations `init_std`."""
        rho = {f"rho/{name}": torch.full_like(t, inverse_softplus(self.init_std)) for name, t in weights.items()}
        return self.starting_means(weights) | rho


@APPROXIMATIONS.register
@dataclass(frozen=True)
class LowRank(Family):
    """q(w) = N(μ, diag σ² + F Fᵀ), F of `rank` columns over all weights: correlations in a few directions.

    Ong, Nott & Smith (2018). With as many columns as weights the family contains every normal distribution. Initially
    half of the variance is in F, in random directions, since the gradient vanishes at F = 0. The other arguments are
    those of `Family`.
    """

    rank: int = 5
    citation: ClassVar[str] = """@article{ong2018gaussian,
  title={Gaussian variational approximation with a factor covariance structure},
  author={Ong, Victor M-H and Nott, David J and Smith, Michael S},
  journal={Journal of Computational and Graphical Statistics}, volume={27}, number={3}, pages={465--478},
  year={2018}}"""

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """Raise unless the rank is valid."""
        check_rank(self, self.rank, count_weights(posterior))

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """Means at the weights, marginal standard deviations about `init_std`."""
        check_rank(self, self.rank, sum(t.numel() for t in weights.values()))
        half = self.init_std / 2**0.5
        rho = {f"rho/{name}": torch.full_like(t, inverse_softplus(half)) for name, t in weights.items()}
        factors, position = {}, 0
        for name, t in weights.items():
            size = t.numel() * self.rank
            z = random.normal(
                size, seed=seed, chain=0, step=0, start=position, stream=random.Stream.FORWARD, dtype=t.dtype
            )
            factors[f"factor/{name}"] = z.reshape(*t.shape, self.rank).to(t) * (half / self.rank**0.5)
            position += size
        return self.starting_means(weights) | rho | factors

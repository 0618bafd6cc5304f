"""Synthetic data."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from langevin.core.arguments import SEED, validated
from langevin.data.checks import check_split


class LogisticDataset(TensorDataset):
    """Inputs (N, features) and labels 0 or 1, with the true weights `omega_true`, (features,)."""

    def __init__(self, x: Tensor, y: Tensor, omega_true: Tensor) -> None:
        super().__init__(x, y)
        self.omega_true = omega_true


@validated(seed=SEED)
def binary_logistic(
    split: str = "train",
    size: int = 1000,
    omega_true: Sequence[float] = (16.0, 0.0),
    features: int | None = None,
    seed: int = 0,
) -> LogisticDataset:
    """Return data of a logistic regression with known weights: standard normal x, P(y = 1 | x) = σ(ω_true·x).

    Smith, Duckworth, Le et al. (2018), "Stochastic natural gradient descent draws posterior samples in function
    space", section 6.1: 1,000 examples with ω_true = (16, 0), or `features=64`, for which ω_true is padded with zeros.

    >>> binary_logistic(features=64).omega_true[:3]
    tensor([16.,  0.,  0.])
    """
    check_split(split)
    missing = 0 if features is None else features - len(omega_true)
    if size < 1 or missing < 0 or not len(omega_true):
        raise ValueError(
            f"size={size}, omega_true={tuple(omega_true)}, features={features}: expected a positive size and at least "
            "as many features as omega_true has weights, for example binary_logistic(omega_true=(16.0, 0.0))"
        )
    omega = torch.tensor([*omega_true, *[0.0] * missing], device="cpu")
    generator = torch.Generator().manual_seed(2 * seed + (split == "test"))
    x = torch.randn(size, len(omega), generator=generator, device="cpu")
    y = torch.bernoulli(torch.sigmoid(x @ omega), generator=generator).long()
    return LogisticDataset(x, y, omega)

"""UCI regression data sets with the twenty splits that papers share."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from langevin.core.arguments import validated
from langevin.data.checks import check_split
from langevin.data.files import fetch

FOLDS = {"concrete": 20, "energy": 20, "power-plant": 20, "protein": 5, "wine-quality-red": 20, "yacht": 20}


class RegressionDataset(TensorDataset):
    """Features (N, features) and targets (N, 1), standardized by mean and standard deviation of the training part.

    These are `feature_mean`, `feature_std`, `target_mean` and `target_std`; a prediction in the original unit is
    `prediction * data.target_std + data.target_mean`.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        feature_mean: Tensor,
        feature_std: Tensor,
        target_mean: Tensor,
        target_std: Tensor,
    ) -> None:
        super().__init__(((x - feature_mean) / feature_std).float(), ((y - target_mean) / target_std).float())
        self.feature_mean = feature_mean.float()
        self.feature_std = feature_std.float()
        self.target_mean = target_mean.float()
        self.target_std = target_std.float()


@validated()
def uci(name: str, split: str = "train", fold: int = 0, standardize: bool = True) -> RegressionDataset:
    """Return a UCI regression data set: concrete, energy, power-plant, protein, wine-quality-red or yacht.

    `fold`, 0 to 19 (protein: 0 to 4), is one of the splits (90 % to train on) of Hernández-Lobato & Adams (2015),
    "Probabilistic backpropagation", in the files of Gal & Ghahramani (2016), "Dropout as a Bayesian approximation".
    Features and targets are standardized by the training part of the fold, unless `standardize=False`.
    """
    check_split(split)
    if name not in FOLDS:
        raise ValueError(f'name="{name}": expected one of {", ".join(FOLDS)}, for example uci("yacht")')
    if fold not in range(FOLDS[name]):
        raise ValueError(f"fold={fold}: expected 0 to {FOLDS[name] - 1}, for example fold=0")
    table = _table(name, "data")
    features = _table(name, "index_features").long().flatten()
    target = _table(name, "index_target").long().flatten()
    train = _table(name, f"index_train_{fold}").long().flatten()
    rows = train if split == "train" else _table(name, f"index_test_{fold}").long().flatten()
    x, y = table[:, features], table[:, target]
    moments = []
    for values in (x, y):
        std, mean = torch.std_mean(values[train], dim=0, correction=0)
        std = torch.where(std > 0, std, 1.0)  # a constant feature becomes 0
        moments += [mean, std] if standardize else [torch.zeros_like(mean), torch.ones_like(std)]
    return RegressionDataset(x[rows], y[rows], *moments)


def _table(name: str, file: str) -> Tensor:
    return torch.from_numpy(np.loadtxt(fetch(f"uci/{name}/{file}.txt"), ndmin=2))

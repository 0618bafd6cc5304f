"""The data sets of the leaderboard: networks, splits, OOD inputs, and the scores of a prediction."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import langevin as lv
from benchmarks.autopilot import FOLDS, WIDTHS
from langevin.demo import photograph_patches
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation.calibration import interval_coverage
from langevin.evaluation.ood import detection
from langevin.evaluation.scores import accuracy, calibration_error, negative_log_likelihood

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """One split of one data set."""

    train: Examples
    test: Examples
    model: Callable[[], nn.Module]
    likelihood: Any
    seed: int
    scale: float = 1.0  # of the targets
    ood: Tensor | None = None

    def posterior(self, num_data: int) -> lv.Posterior:
        """The same for every method."""
        torch.manual_seed(self.seed)
        return lv.Posterior(self.model(), self.likelihood, lv.priors.Gaussian(1.0), num_data=num_data)

    def validation(self) -> Task:
        """A fifth of the training part in the place of the test part."""
        order = torch.randperm(len(self.train[0]), generator=torch.Generator().manual_seed(0))
        cut = len(order) // 5
        train, test = (tuple(t[some] for t in self.train) for some in (order[cut:], order[:cut]))
        return Task(train, test, self.model, self.likelihood, self.seed, self.scale)  # type: ignore[arg-type]


def _uci(name: str, split: int) -> Task:
    train, test = (lv.data.uci(name, part, fold=split) for part in ("train", "test"))
    return _values(name, train.tensors, test.tensors, float(train.target_std), split)


def _unsplit(name: str, split: int) -> Task:
    """A table whose last column is the target, a random fifth of it to test on."""
    file = Path(os.environ.get("LANGEVIN_DATA", "")) / "uci" / name / "data.txt"
    if not file.exists():
        raise ValueError(f"{name} is read from LANGEVIN_DATA/uci/{name}/data.txt, which does not exist.")
    table = torch.from_numpy(np.loadtxt(file)).double()
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(split))
    train, test = table[order[len(order) // 5 :]], table[order[: len(order) // 5]]
    std, mean = torch.std_mean(train, dim=0, correction=0)
    parts = [((part - mean) / torch.where(std > 0, std, 1.0)).float() for part in (train, test)]
    both = [(part[:, :-1], part[:, -1:]) for part in parts]
    return _values(name, both[0], both[1], float(std[-1]), split)


def _values(name: str, train: Any, test: Any, scale: float, split: int) -> Task:
    inputs, width = train[0].shape[1], WIDTHS.get(name, 50)
    return Task(
        train,
        test,
        lambda: nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 2)),
        lv.likelihoods.HeteroscedasticStudentT(),
        split,
        scale,
    )


def _digits(name: str, split: int) -> Task:
    parts = [lv.data.digits(part).tensors for part in ("train", "test")]
    x, y = (torch.cat([parts[0][i], parts[1][i]]) for i in (0, 1))
    train, test = _shuffled(x, y, split, 360)
    return Task(
        train,
        test,
        lambda: lv.models.MLP(64, 10, widths=(50,)),
        lv.likelihoods.Categorical(),
        split,
        ood=photograph_patches(360),
    )


def _mushroom(name: str, split: int) -> Task:
    x, y = lv.data.mushroom("all").tensors
    train, test = _shuffled(x, y, split, 1625)
    return Task(train, test, lambda: lv.models.MLP(117, 2, widths=(50,)), lv.likelihoods.Categorical(), split)


def _fashion(name: str, split: int) -> Task:
    """Images of 14 × 14 by averaging; 10,000 to train on, others in every split; letters as OOD inputs."""
    count = 60_000 if name.endswith("60000") else 10_000
    (x, y), (test_x, test_y) = (_small(lv.data.fashion_mnist(part)) for part in ("train", "test"))
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(split))[:count]
    return Task((x[chosen], y[chosen]), (test_x, test_y), _cnn, lv.likelihoods.Categorical(), split, ood=_letters())


def _small(data: Any) -> Examples:
    x, y = data.tensors
    return nn.functional.avg_pool2d(x, 2), y


def _letters() -> Tensor:
    return _small(lv.data.notmnist("test"))[0][:2000]


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 9, 10),
    )


def _shuffled(x: Tensor, y: Tensor, split: int, test: int) -> tuple[Examples, Examples]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split))
    return (x[order[test:]], y[order[test:]]), (x[order[:test]], y[order[:test]])


@dataclass(frozen=True)
class Row:
    """A data set: how its splits are made, and how many there are."""

    make: Callable[[str, int], Task]
    splits: int
    classifies: bool = False


ROWS = {
    **{name: Row(_uci, FOLDS[name]) for name in ("yacht", "energy", "concrete", "wine-quality-red")},
    "digits": Row(_digits, 20, classifies=True),
    "airfoil": Row(_unsplit, 20),
    **{name: Row(_uci, FOLDS[name]) for name in ("power-plant", "protein")},
    "bikesharing": Row(_unsplit, 5),
    "mushroom": Row(_mushroom, 5, classifies=True),
    "fashion-mnist-10000": Row(_fashion, 3, classifies=True),
    "fashion-mnist-60000": Row(_fashion, 1, classifies=True),
}
REGRESSION = [name for name, row in ROWS.items() if not row.classifies]


def scores(predictor: Any, task: Task) -> dict[str, float]:
    """Negative log-likelihood and RMSE in the units of the data, or accuracy; calibration; OOD AUROC."""
    x, y = task.test
    prediction = predictor.predict(x)
    if isinstance(prediction, ClassPrediction):
        found = {
            "nll": negative_log_likelihood(prediction.probs, y),
            "accuracy": accuracy(prediction.probs, y),
            "calibration": calibration_error(prediction.probs, y),
        }
        if task.ood is not None:
            outside = predictor.predict(task.ood)
            found["ood"] = detection(-prediction.confidence, -outside.confidence).auroc
        return found
    covered = interval_coverage(prediction, y)
    error = (prediction.mean - y).double().square().mean().sqrt() * task.scale
    return {
        "nll": float(-prediction.log_prob(y).double().mean()) + math.log(task.scale),
        "rmse": float(error),
        "calibration": sum(abs(share - level) for level, share in covered.items()) / len(covered),
    }

"""What the experiments share: one run of a method, and its scores.

A run saves its weights several times a cycle. Those at the end of a cycle after burn-in are samples of the posterior;
all of them give the curve of the test loss. So an interrupted cell resumes from its run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import MultiStepLR

import langevin as lv
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation import scores
from reproductions.harness import sample_or_resume
from reproductions.heek2019.networks import make_posterior, pieces, training_data
from reproductions.rows import Cell


def _overconfidence(probs: Tensor, labels: Tensor) -> float:
    """Mean confidence less accuracy."""
    return float(probs.amax(1).mean()) - scores.accuracy(probs, labels)


SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": scores.accuracy,
    "nll": scores.negative_log_likelihood,
    "calibration": scores.calibration_error,
    "overconfidence": _overconfidence,
}


@dataclass(frozen=True)
class Settings:
    """Section 5.1, and where the paper is silent what the implementation that it names does.

    Augmentation, the baseline's rate, its decay to a tenth at the half and at three quarters of 182 epochs and the
    weight decay of the network with BatchNorm are those of the TensorFlow official ResNet-56. Nobody says the
    baseline's rate and prior without BatchNorm (here the prior is the sampler's, so it looks for the most probable
    weights), nor how much dropout it was that underfitted. `thermostat_rate` is h₀², with which our thermostat is the
    paper's.
    """

    methods: tuple[str, ...]
    data: str = "cifar10"
    num_data: int = 50_000
    test_size: int = 10_000
    image_size: int = 32
    augment: tuple[str, ...] = ("crop", "flip")
    classes: int = 10
    depth: int = 56  # 50 is the bottleneck network for ImageNet
    width: int = 32
    batch_size: int = 128
    cycle_epochs: float = 50
    cycles: int = 20
    burn_in_cycles: float = 3
    looks: int = 5  # times a cycle that the weights are saved
    lr: float = 3e-4  # the paper's average speed
    max_speed: float = 1e-3
    friction: float = 0.9
    thermostat_rate: float = 1e-6
    sgd_epochs: float = 182
    sgd_lr: float = 0.1
    batchnorm_lr: float = 0.1
    falls: tuple[float, ...] = (1 / 2, 3 / 4)  # of the baseline's steps, where its rate falls to a tenth
    momentum: float = 0.9
    weight_decay: float = 2e-4
    dropout: float = 0.3
    probe: int = 2000  # training images on which the fit is measured
    seeds: int = 3

    @property
    def look(self) -> int:
        """Steps from one look at the weights to the next."""
        return max(1, round(self.cycle_epochs * self.num_data / self.batch_size / self.looks))

    @property
    def cycle(self) -> int:
        """Steps of a cycle."""
        return self.look * self.looks


def cells(settings: Settings) -> list[Cell]:
    """Every method."""
    return [{"method": method, "seed": seed} for seed in range(settings.seeds) for method in settings.methods]


def run_method(settings: Settings, workplace: Path, method: str, seed: int) -> lv.Run:
    """SGD with a learning rate that falls twice, or a thermostat with a cyclical (or constant) one."""
    steps = settings.cycles * settings.cycle
    if method.startswith("SGD"):
        if "longer" not in method:
            epochs = settings.sgd_epochs * settings.num_data / settings.batch_size
            steps = max(1, round(epochs / settings.look)) * settings.look
        rate = settings.batchnorm_lr if "BatchNorm" in method else settings.sgd_lr
        sampler: type[lv.Sampler] = lv.SGD
        options: dict[str, Any] = {"lr": rate, "momentum": settings.momentum}
        milestones = [round(share * steps) for share in settings.falls]
        schedule: Any = partial(MultiStepLR, milestones=milestones, gamma=0.1)
    else:
        sampler = lv.SGNHT if method.startswith("SGNHT") else lv.ATMC
        options = {
            "lr": settings.lr,
            "max_speed": settings.max_speed,
            "momentum": settings.friction,
            "thermostat_rate": settings.thermostat_rate,
            "integrator": "fused",  # the paper's
        }
        schedule = None if "constant" in method else lv.cyclical(settings.cycle)
    return sample_or_resume(
        workplace,
        make_posterior(settings, method, seed),
        training_data(settings),
        sampler,
        **options,
        steps=steps,
        burn_in=0,  # every look is saved; what counts as burn-in is decided when they are read
        thin=settings.look,
        schedule=schedule,
        batch_size=settings.batch_size,
        seed=seed,
    )


def measure(settings: Settings, workplace: Path, *, method: str, seed: int) -> Cell:
    """Scores of the last weights and of the ensemble; test loss against steps, and against the ensemble's size."""
    try:
        run = run_method(settings, workplace, method, seed)
    except lv.DivergenceError as error:
        return {"data": settings.data, "diverged": _reason(error, workplace)}
    looks, y = predictions(settings, run, "test", settings.test_size)
    fit, train_y = predictions(settings, run[-1:], "train", settings.probe)
    if not bool(looks.isfinite().all() and fit.isfinite().all()):
        return {"data": settings.data, "diverged": "its predictions are not finite."}
    losses = [scores.negative_log_likelihood(probs, y) for probs in looks]
    row: Cell = {
        "data": settings.data,
        "diverged": None,
        "epochs": [round(step * settings.batch_size / settings.num_data, 3) for step in run.steps],
        "curve": [round(loss, 4) for loss in losses],
        "single": scored(looks[-1], y),
        "train": scored(fit[-1], train_y, ["nll"]),
        "best": scored(looks[losses.index(min(losses))], y, ["nll"]),
    }
    if not method.startswith("SGD"):
        late = [i for i, step in enumerate(run.steps) if step > settings.burn_in_cycles * settings.cycle]
        samples = looks[[i for i in late if run.steps[i] % settings.cycle == 0]]
        row |= {
            "predictive": scored(samples.mean(0), y),
            "first_half": scored(samples[: (len(samples) + 1) // 2].mean(0), y, ["nll"]),
            "by_samples": by_samples(samples, y),
            "by_all_looks": by_samples(looks[late], y),
        }
    return row


def _reason(error: lv.DivergenceError, workplace: Path) -> str:
    """What the error says before it names the directory, which is deleted when the cell is done."""
    return str(error).partition(str(workplace))[0].rpartition(". ")[0] + "."


def predictions(settings: Settings, ensemble: lv.Ensemble, split: str, size: int) -> tuple[Tensor, Tensor]:
    """Class probabilities from each member, (members, images, classes), and the labels."""
    found = []
    for x, y in pieces(settings, split, size):
        prediction = ensemble.predict(x, batch_size=250, samples=True)
        assert isinstance(prediction, ClassPrediction)
        assert prediction.samples is not None
        found.append((prediction.samples.cpu(), y))
    return torch.cat([probs for probs, _ in found], 1), torch.cat([y for _, y in found])


def scored(probs: Tensor, y: Tensor, names: Sequence[str] = tuple(SCORES)) -> Cell:
    """These scores, and the 8 bins of the calibration plot."""
    bins = scores.reliability(probs, y, min(8, len(y)))
    return {
        **{name: round(SCORES[name](probs, y), 5) for name in names},
        "bins": [[round(v, 4) for v in values.tolist()] for values in bins],
    }


def by_samples(samples: Tensor, y: Tensor) -> list[float]:
    """Test loss of the ensemble of the last n, for n = 1, 2, …"""
    sums = samples.flip(0).cumsum(0)
    return [round(scores.negative_log_likelihood(total / n, y), 4) for n, total in enumerate(sums, 1)]

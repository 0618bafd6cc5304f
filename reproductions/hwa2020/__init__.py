"""Anonymous (2020): averaging hyperparameters in Bayesian neural networks (HWA)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import nn

import langevin as lv
from langevin.models import VGG, LeNet5
from reproductions.harness import Claim, Experiment, Paper
from reproductions.hwa2020.averages import CYCLE_MATTERS, TIED_MEAN, Settings, against, cells, draw, measured
from reproductions.rows import Cell

CLAIMS = [
    Claim("HWA reaches a better test accuracy than SVI …", against("accuracy", "SVI", "test accuracy", "above")),
    Claim(
        "… and a worse training loss.",
        against("train_nll", "SVI", "training NLL", "above"),
        "The loss is that of the prediction, and an average is the better prediction on training data too.",
    ),
    Claim("(implied) HWA has a better test likelihood than SVI.", against("nll", "SVI", "test NLL")),
    Claim(
        "(implied) HWA has a better test likelihood than SWA.",
        against("nll", "SWA", "test NLL"),
        "The variance within the snapshots, that of SVI, is too wide for this network: compare the variance between "
        "them alone, in brackets.",
    ),
    Claim("(implied) HWA is better calibrated than SVI.", against("calibration_error", "SVI", "calibration error")),
    Claim("The cycle length is of utmost importance.", CYCLE_MATTERS),
    Claim(
        "(implied) One scalar mean per layer is good enough.",
        TIED_MEAN,
        "Weights that share one mean differ by noise alone: such a layer has no features to learn.",
    ),
]


@dataclass(frozen=True)
class VGGSettings(Settings):
    """With the size of the network."""

    depth: int = 16
    channels: int = 64


LENET = Settings(data="mnist", num_data=60_000)
VGG16 = VGGSettings(data="cifar10", num_data=50_000, start_steps=40_000, steps=20_000)
_SMALL: dict[str, Any] = {
    "test_size": 60,
    "batch_size": 16,
    "start_steps": 10,
    "steps": 24,
    "cycles": (4, 6),
    "draws": 2,
    "rank": 2,
    "resolution": 3,
    "landscape_size": 30,
    "seeds": 1,
}


def measure_lenet(settings: Settings, workplace: Path, **cell: Any) -> Cell:
    """A cell of LeNet-5."""
    return measured(LeNet5, settings, workplace, **cell)


def measure_vgg(settings: VGGSettings, workplace: Path, **cell: Any) -> Cell:
    """A cell of VGG."""
    return measured(_vgg(settings.depth, settings.channels), settings, workplace, **cell)


@cache  # one object, so that what is cached of it is found again
def _vgg(depth: int, channels: int) -> Callable[[], nn.Module]:
    return partial(VGG, depth, channels=channels)


PAPER = Paper(
    title="HWA: averaging hyperparameters in Bayesian neural networks leads to better generalization (2020)",
    citation=lv.HWA.citation,
    remarks='The paper printed no numbers: ours are the first, and the settings under "in the paper" are our guess.',
    experiments={
        "lenet": Experiment(
            title="Bayesian LeNet-5 on MNIST",
            settings={
                "quick": replace(LENET, data="digits", num_data=100, **_SMALL),
                "full": replace(
                    LENET, num_data=5000, test_size=5000, start_steps=1000, steps=1000, cycles=(50, 20, 100), draws=20
                ),
                "paper": LENET,
            },
            cells=cells,
            measure=measure_lenet,
            draw=draw,
            claims=CLAIMS,
            figure_size=(15, 6.5),
        ),
        "vgg": Experiment(
            title="Bayesian VGG on CIFAR-10",
            settings={
                "quick": replace(VGG16, data="noise", num_data=64, depth=11, channels=1, **_SMALL),
                "full": replace(
                    VGG16,
                    num_data=5000,
                    test_size=1000,
                    batch_size=64,
                    depth=11,
                    channels=8,
                    start_steps=400,
                    steps=400,
                    cycles=(20, 8, 40),
                    draws=10,
                    landscape_size=500,
                ),
                "paper": VGG16,
            },
            cells=cells,
            measure=measure_vgg,
            draw=draw,
            claims=CLAIMS,
            figure_size=(15, 6.5),
        ),
    },
)

"""A residual network on CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import langevin as lv
from langevin.data import cifar10
from langevin.models import CifarResNet
from reproductions.harness import Claim, Experiment
from reproductions.lange2023.race import FASTER_START, LABELS, draw_race, race
from reproductions.layout import memory_format
from reproductions.rows import Cell

RATES = {  # a fourth where the best of three was the largest
    "sgld": (0.01, 0.03, 0.1, 0.3),
    "psgld": (1e-4, 3e-4, 1e-3, 3e-3),
    "ksgld": (1e-3, 3e-3, 1e-2),
    "bnpsgld": (0.01, 0.03, 0.1),
}


@dataclass(frozen=True)
class Settings:
    """The paper's network and schedule are not at hand: ResNet-20 and 50 epochs are the usual choice."""

    data: str = "cifar10"
    num_data: int = 50_000
    test_size: int = 10_000
    depth: int = 20
    width: int = 16
    norm: str = "frn"
    batch_size: int = 128
    steps: int = 20_000
    every: int = 400
    rates: int = 4
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every sampler at every learning rate of its grid."""
    return [
        {"method": method, "lr": lr, "seed": seed}
        for seed in range(settings.seeds)
        for method in LABELS
        for lr in RATES[method][: settings.rates]
    ]


def measure(settings: Settings, workplace: Path, *, method: str, lr: float, seed: int) -> Cell:
    """One race."""
    train, test = _read_data(settings)
    torch.manual_seed(seed)
    model = CifarResNet(settings.depth, settings.width, norm=settings.norm)
    model.to(memory_format=memory_format(settings.width))  # type: ignore[call-overload]
    options = {"factor_interval": 10, "inverse_interval": 100} if method == "ksgld" else {}
    return race(
        workplace,
        lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.fan_in(model), num_data=settings.num_data),
        train,
        test,
        method=method,
        lr=lr,
        steps=settings.steps,
        every=settings.every,
        batch_size=settings.batch_size,
        seed=seed,
        options=options,
    )


@cache
def _read_data(settings: Settings) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if settings.data == "noise":  # synthetic, for tests
        x = torch.randn(settings.num_data + settings.test_size, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        y = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(1))
        return (x[: settings.num_data], y[: settings.num_data]), (x[settings.num_data :], y[settings.num_data :])
    return cifar10("train", size=settings.num_data).tensors, cifar10("test", size=settings.test_size).tensors


EXPERIMENT = Experiment(
    title="A residual network on CIFAR-10",
    settings={
        "quick": Settings(
            data="noise", num_data=64, test_size=16, depth=8, width=2, batch_size=8, steps=4, every=2, rates=1, seeds=1
        ),
        "full": Settings(num_data=5000, test_size=1000, depth=8, width=8, batch_size=32, steps=400, every=20),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw_race,
    claims=[Claim("BNP-SGLD converges faster initially (residual network).", FASTER_START)],
)

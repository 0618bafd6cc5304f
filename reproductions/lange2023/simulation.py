"""A simulation with shifted, badly scaled inputs, after the paper's, whose details are not at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import langevin as lv
from langevin.models import MLP
from reproductions.harness import Claim, Experiment
from reproductions.lange2023.race import FASTER_START, LABELS, draw_race, race
from reproductions.rows import Cell

RATES = {
    "sgld": (0.003, 0.01, 0.03, 0.1),
    "psgld": (3e-4, 1e-3, 3e-3, 1e-2),
    "ksgld": (1e-3, 3e-3, 1e-2, 3e-2),
    "bnpsgld": (0.03, 0.1, 0.3, 1.0),
}


@dataclass(frozen=True)
class Settings:
    """Features of scales from 0.3 to 3, shifted by up to three of their standard deviations."""

    num_data: int = 2000
    test_size: int = 2000
    features: int = 10
    smallest_scale: float = 0.3
    largest_scale: float = 3.0
    largest_shift: float = 3.0  # standard deviations
    width: int = 50
    batch_size: int = 64
    steps: int = 2000
    every: int = 20
    rates: int = 4
    seeds: int = 3


def simulated(settings: Settings, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test data; a random network labels the inputs before they are shifted and scaled."""
    generator = torch.Generator().manual_seed(1000 + seed)
    z = torch.randn(settings.num_data + settings.test_size, settings.features, generator=generator)
    first = torch.randn(settings.features, 20, generator=generator) / settings.features**0.5
    second = torch.randn(20, generator=generator)
    y = ((torch.tanh(2 * z @ first) @ second) > 0).long()
    scale = torch.logspace(0, 1, settings.features, base=settings.largest_scale / settings.smallest_scale)
    shift = settings.largest_shift * (2 * torch.rand(settings.features, generator=generator) - 1)
    x = settings.smallest_scale * scale * (z + shift)
    return (x[: settings.num_data], y[: settings.num_data]), (x[settings.num_data :], y[settings.num_data :])


def make_posterior(settings: Settings, seed: int) -> lv.Posterior:
    """A network of one hidden layer."""
    torch.manual_seed(seed)
    model = MLP(settings.features, 1, widths=(settings.width,), activation="tanh")
    return lv.Posterior(model, lv.likelihoods.Bernoulli(), lv.priors.fan_in(model), num_data=settings.num_data)


def cells(settings: Settings) -> list[Cell]:
    """Every sampler at every learning rate of its grid."""
    return [
        {"method": method, "lr": lr, "seed": seed}
        for seed in range(settings.seeds)
        for method in LABELS
        for lr in RATES[method][-settings.rates :]
    ]


def measure(settings: Settings, workplace: Path, *, method: str, lr: float, seed: int) -> Cell:
    """One race."""
    train, test = simulated(settings, seed)
    return race(
        workplace,
        make_posterior(settings, seed),
        train,
        test,
        method=method,
        lr=lr,
        steps=settings.steps,
        every=settings.every,
        batch_size=settings.batch_size,
        seed=seed,
    )


EXPERIMENT = Experiment(
    title="A simulation with shifted and badly scaled inputs",
    settings={
        "quick": Settings(num_data=300, test_size=300, width=10, steps=80, rates=1, seeds=1),
        "full": Settings(),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw_race,
    claims=[Claim("BNP-SGLD converges faster initially (simulation).", FASTER_START)],
)

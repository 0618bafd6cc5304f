"""What both experiments share: the variants, the grid of each, and one training run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

import langevin as lv
from langevin.data import digits, mnist, notmnist
from langevin.data.images import NORMALIZATIONS
from langevin.models import CNN
from reproductions.harness import freeze_from, sample_or_resume
from reproductions.rows import Cell

Examples = tuple[Tensor, Tensor]
Point = tuple[float, float, float | None]  # lr, the last lr over the first, damping (pSGLD's λ, K-FAC's γ)

# Equation 2 of the paper: noise of variance λ_t, which is T = ½, times G itself, and a plain drift
LETTER: dict[str, Any] = {"precondition": "noise", "noise_power": 1.0, "temperature": 0.5}


class Variant(NamedTuple):
    """A sampler and the five points of its grid; `ours` are frozen half-way, the paper's adapt all along."""

    sampler: type[lv.Sampler]
    options: dict[str, Any]
    ours: bool
    grid: tuple[Point, ...]


_PLAIN: tuple[Point, ...] = ((0.3, 0.3, None), (0.3, 0.1, None), (0.5, 0.3, None), (0.5, 0.1, None), (0.5, 0.01, None))
_NOISE_ONLY: tuple[Point, ...] = ((0.3, 0.3, 1.0), (0.3, 0.1, 1.0), (0.3, 0.3, 0.3), (0.3, 0.1, 0.3), (0.3, 0.1, 0.1))
VARIANTS = {
    "SGD": Variant(lv.SGD, {}, False, _PLAIN),
    "FSGD": Variant(lv.FSGD, {}, False, tuple((lr, 1.0, None) for lr in (0.3, 0.05, 0.1, 0.2, 0.5))),
    "SGLD": Variant(lv.SGLD, {"temperature": 0.5}, False, _PLAIN),
    "pSGLD": Variant(lv.pSGLD, LETTER, False, _NOISE_ONLY),
    "KSGLD": Variant(lv.KSGLD, LETTER, False, _NOISE_ONLY),
    "SGLD, T = 1": Variant(lv.SGLD, {}, True, _PLAIN),
    "pSGLD, both": Variant(
        lv.pSGLD,
        {},
        True,
        ((3e-3, 0.1, 1e-3), (1e-3, 0.1, 1e-3), (1e-3, 0.1, 1e-5), (1e-2, 0.1, 1e-2), (3e-2, 0.1, 1e-2)),
    ),
    "KSGLD, both": Variant(
        lv.KSGLD,
        {},
        True,
        ((0.03, 0.1, 0.03), (0.01, 0.1, 0.01), (0.03, 0.3, 0.03), (0.03, 0.1, 0.1), (0.05, 0.1, 0.1)),
    ),
}
FROM_PAPER = [name for name, variant in VARIANTS.items() if not variant.ours]
LANGEVIN = ["SGLD", "pSGLD", "KSGLD"]
OURS = [name for name, variant in VARIANTS.items() if variant.ours]

# settings that both experiments reduce
QUICK: dict[str, Any] = {
    "data": "digits",
    "train_size": 1237,
    "validation_size": 200,
    "image_size": 8,
    "channels": (2, 4),
    "width": 16,
    "batch_size": 64,
    "epochs": 4,
    "thin": 1,
    "averaged": 5,
    "inverse_interval": 40,
    "grid": 1,
    "seeds": 1,
}
FULL: dict[str, Any] = {
    "test_size": 5_000,
    "image_size": 14,
    "channels": (8, 16),
    "width": 128,
    "factor_interval": 5,
    "inverse_interval": 5,
}


@dataclass(frozen=True)
class Settings:
    """Section 4. The paper does not state prior, scaling of the pixels, learning rates and their schedule, damping,
    burn-in, how many samples are averaged, and what its grid was judged by: these are ours. The last 5,000 of the
    60,000 training images are kept for that.
    """

    data: str = "mnist"
    train_size: int = 55_000
    validation_size: int = 5_000
    test_size: int = 10_000
    image_size: int = 28
    channels: tuple[int, int] = (32, 64)
    width: int = 1024
    batch_size: int = 512
    epochs: int = 10
    prior_std: float = 1.0
    thin: int = 10
    averaged: int = 20  # samples of the second half that a prediction averages over; SGD predicts with its last
    factor_interval: int = 10
    inverse_interval: int = 100
    looks: int = 10  # times at which accuracy and mESS are measured: the ends of the epochs
    grid: int = 5
    seeds: int = 3


class Data(NamedTuple):
    """Images and labels, out-of-distribution images, and the pixel values of black and white."""

    train: Examples
    validation: Examples
    test: Examples
    outside: Tensor
    black: float
    white: float


def cells(settings: Settings) -> list[Cell]:
    """Every variant at every point of its grid, with the first seed."""
    return [
        {"method": name, "lr": lr, "decay": decay, "damping": damping, "seed": 0}
        for name, variant in VARIANTS.items()
        for lr, decay, damping in variant.grid[: settings.grid]
    ]


def train(
    settings: Settings, workplace: Path, *, method: str, lr: float, decay: float, damping: float | None, seed: int
) -> lv.Run:
    """One run, with samples from its first step on; the learning rate falls exponentially, by `decay` in all."""
    data = read_data(settings).train
    sampler, options, ours, _ = VARIANTS[method]
    if sampler is lv.pSGLD:
        options = {**options, "eps": damping}
    elif sampler is lv.KSGLD:
        intervals = {"factor_interval": settings.factor_interval, "inverse_interval": settings.inverse_interval}
        options = {**options, "damping": damping, **intervals}
    torch.manual_seed(seed)
    model = make_network(settings)
    steps = settings.epochs * len(data[0]) // settings.batch_size
    return sample_or_resume(
        workplace,
        lv.Posterior(
            model, lv.likelihoods.Categorical(), lv.priors.Gaussian(settings.prior_std), num_data=len(data[0])
        ),
        data,
        sampler,
        lr=lr,
        **options,
        steps=steps,
        burn_in=0,
        thin=settings.thin,
        batch_size=settings.batch_size,
        schedule=None if decay == 1 else partial(ExponentialLR, gamma=decay ** (1 / steps)),
        freeze=False,  # not at the end of burn-in, which is step 0, but by the callback
        callbacks=[freeze_from(steps // 2)] if ours else [],
        seed=seed,
    )


def make_network(settings: Settings) -> nn.Module:
    """The CNN of the paper, with images in the order that is fastest."""
    model = CNN(image_size=settings.image_size, channels=settings.channels, width=settings.width)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def ensemble(settings: Settings, run: lv.Run, method: str) -> lv.Ensemble:
    """What a prediction averages over: samples of the second half or, for SGD, the last iterate alone."""
    half = len(run) // 2
    members = torch.linspace(half, len(run) - 1, min(settings.averaged, len(run) - half)).long().tolist()
    weights = [run[index] for index in (members[-1:] if method == "SGD" else members)]
    return lv.Ensemble.from_weights(make_network(settings), lv.likelihoods.Categorical(), weights)


@cache
def read_data(settings: Settings) -> Data:
    """Validation examples are the last of the training part. Digits have their own negatives as OOD images."""
    size, count = settings.image_size, settings.train_size + settings.validation_size
    if settings.data == "noise":  # synthetic, for tests
        x = torch.rand(count + settings.test_size, 1, size, size, generator=torch.Generator().manual_seed(0))
        y = torch.arange(len(x)) % 10
        return _split(settings, (x[:count], y[:count]), (x[count:], y[count:]), 1 - x[count:], 0.0, 1.0)
    (mean,), (std,) = NORMALIZATIONS[settings.data]
    black, white = -mean / std, (1 - mean) / std
    if settings.data == "digits":
        (x, y), test = digits("train").tensors, digits("test").tensors
        return _split(settings, (x, y), test, black + white - test[0], black, white)
    (x, y), test = mnist("train").tensors, mnist("test", size=settings.test_size).tensors
    return _split(settings, (x, y), test, notmnist(size=settings.test_size).tensors[0], black, white)


def _split(settings: Settings, known: Examples, test: Examples, outside: Tensor, *ends: float) -> Data:
    x, test_x, outside = (
        t if t.shape[-1] == settings.image_size else F.interpolate(t, size=settings.image_size, mode="area")
        for t in (known[0], test[0], outside)
    )
    y, first, last = known[1], settings.train_size, settings.validation_size
    return Data((x[:first], y[:first]), (x[-last:], y[-last:]), (test_x, test[1]), outside, *ends)

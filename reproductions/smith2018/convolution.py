"""Figure 7: a convolution network of 3,490 weights on MNIST, against temperature, learning rate and N."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import langevin as lv
from langevin.data import digits, mnist
from langevin.models import StridedCNN
from reproductions.harness import Claim, Experiment, sample_or_resume
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.rows import BySeed, Cell, Rows, minus
from reproductions.smith2018.network import DIVERGED, READINGS, ensemble_scores, lost


@dataclass(frozen=True)
class Settings:
    """Section 6.4; the paper does not print the temperatures, rates and sizes of its curves."""

    data: str = "mnist"
    image_size: int = 28
    channels: int = 10
    temperatures: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    rates: tuple[float, ...] = (0.025, 0.05, 0.1)
    sizes: tuple[int, ...] = (2048, 8192, 32768)
    strength: float = 40.0
    damping: float = 0.1
    fisher_batch: int = 1024
    fisher_interval: int = 1
    updates_times_rate: float = 850.0  # updates = this / ε
    averaged: float = 0.002  # the share of updates, at the end, that is averaged over
    start_size: int = 60_000
    start_steps: int = 5000
    test_size: int = 10_000
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every learning rate at the middle N, every N at the middle learning rate."""
    rate, size = _middle(settings.rates), _middle(settings.sizes)
    pairs = [(lr, size) for lr in settings.rates] + [(rate, n) for n in settings.sizes if n != size]
    return [
        {"lr": lr, "N": n, "T": t, "seed": seed}
        for seed in range(settings.seeds)
        for lr, n in pairs
        for t in settings.temperatures
    ]


def measure(settings: Settings, workplace: Path, *, lr: float, N: int, T: float, seed: int) -> Cell:
    """Cross-entropy of the ensemble of the last iterates."""
    (x, y), (test_x, test_y) = _read_data(settings)
    steps = round(settings.updates_times_rate / lr)
    batch_size = lv.samplers.batch_size_for(T, lr, N)
    try:
        run = sample_or_resume(
            workplace,
            _posterior(settings, N, seed),
            (x[:N], y[:N]),
            partial(
                lv.SNGD,
                lr=lr,
                kind="mc",
                damping=settings.damping,
                batch_size=min(settings.fisher_batch, N),
                interval=settings.fisher_interval,
                average=0.95,
            ),
            steps=steps,
            burn_in=steps - max(2, round(settings.averaged * steps)),
            thin=1,
            batch_size=batch_size,
            freeze=False,
            init=_start(settings, seed),
            seed=seed,
        )
    except lv.DivergenceError:
        return {"batch_size": batch_size, "samples": 0, **DIVERGED}
    return {"batch_size": batch_size, "samples": len(run), **ensemble_scores(run, test_x, test_y, singles=10)}


def _posterior(settings: Settings, size: int, seed: int) -> lv.Posterior:
    torch.manual_seed(seed)
    model = StridedCNN(image_size=settings.image_size, channels=settings.channels)
    std = (READINGS["λ‖ω‖²"] * settings.strength) ** -0.5
    return lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(std), num_data=size)


@cache
def _start(settings: Settings, seed: int) -> dict[str, Tensor]:
    """Weights trained by SGD on all training data."""
    (x, y), _ = _read_data(settings)
    posterior = _posterior(settings, len(x), seed)
    return lv.find_map(
        posterior, (x, y), method="sgd", lr=0.05, steps=settings.start_steps, batch_size=128, seed=seed, progress=False
    )


@cache
def _read_data(settings: Settings) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if settings.data == "digits":
        train, test = digits("train"), digits("test")
    elif settings.data == "noise":  # synthetic, for tests
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(settings.start_size, 1, 28, 28, generator=generator)
        labels = torch.randint(10, (settings.start_size,), generator=generator)
        return (images, labels), (images[: settings.test_size], labels[: settings.test_size])
    else:
        train, test = mnist("train", size=settings.start_size), mnist("test", size=settings.test_size)
    (x, y), (test_x, test_y) = train.tensors, test.tensors
    if x.shape[-1] != settings.image_size:
        x, test_x = (F.interpolate(t, size=settings.image_size, mode="area") for t in (x, test_x))
    return (x, y), (test_x, test_y)


def _middle(values: tuple[Any, ...]) -> Any:
    return values[len(values) // 2]


def draw(figure: Any, rows: Rows) -> None:
    """Left: one curve per learning rate; right: one per N."""
    left, right = figure.subplots(1, 2, sharey=True)
    middle_size, middle_rate = _most_common(rows, "N"), _most_common(rows, "lr")
    for panel, name, fixed in ((left, "lr", {"N": middle_size}), (right, "N", {"lr": middle_rate})):
        for value in sorted(rows.where(**fixed).values(name)):
            here = rows.where(**fixed, **{name: value})
            points = [here.mean("nll", T=t) for t in here.values("T")]
            label = f"ε = {value:g}" if name == "lr" else f"N = {value:,}"
            panel.errorbar(
                here.values("T"),
                [p.mean for p in points],
                [p.error for p in points],
                fmt="-o",
                markersize=3,
                label=label,
            )
        panel.axvline(1, color="0.7", linewidth=1, zorder=0)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set(xlabel="temperature", ylabel="test cross-entropy")
        panel.legend(fontsize=8)


def _most_common(rows: Rows, name: str) -> Any:
    return max(rows.values(name), key=lambda value: len(rows.where(**{name: value})))


def _between_rates(rows: Rows) -> Contrasts:
    here = rows.where(N=_most_common(rows, "N"))
    if len(here.values("lr")) < 2:
        raise NotJudged("one learning rate only was run")
    return {
        f"T = {t:g}, lr {one:g} over {other:g}": here.log_ratio("nll", {"T": t, "lr": one}, {"T": t, "lr": other})
        for t in here.values("T")
        if t <= 1
        for one, other in combinations(here.values("lr"), 2)
    }


def _shown_spreads(rows: Rows) -> str:
    here = rows.where(N=_most_common(rows, "N"))
    spreads = {}
    for t in here.values("T"):
        losses = [here.mean("nll", T=t, lr=lr).mean for lr in here.values("lr")]
        spreads[t] = max(losses) / min(losses) - 1
    shown = ", ".join(f"{spread:.0%} (T = {t:g})" for t, spread in spreads.items())
    return f"largest loss over smallest, less one: {shown}." + lost(here)


def _growth(rows: Rows, fixed: str) -> Contrasts:
    """Of each curve: log of the loss at T = 1 over 1.5 × the least below, and of 2 × it over that at the hottest."""
    name = "lr" if fixed == "N" else "N"
    here = rows.where(**{fixed: _most_common(rows, fixed)})
    hottest = max(here.values("T"))
    found = {}
    for value in sorted(here.values(name)):
        one = here.where(**{name: value})
        at_one, hot = one.by_seed("nll", T=1.0), one.by_seed("nll", T=hottest)
        least = {seed: min(row["nll"] for row in one.where(seed=seed) if row["T"] <= 1) for seed in at_one}
        found[f"{name} = {value:g}, not before T = 1"] = {s: math.log(at_one[s] / least[s] / 1.5) for s in at_one}
        found[f"{name} = {value:g}, rapidly after it"] = {s: math.log(2 * at_one[s] / hot[s]) for s in at_one}
    return found


def _shown_growth(rows: Rows, fixed: str) -> str:
    name = "lr" if fixed == "N" else "N"
    here = rows.where(**{fixed: _most_common(rows, fixed)})
    hottest = max(here.values("T"))
    parts = []
    for value in sorted(here.values(name)):
        one = here.where(**{name: value})
        base = min(one.mean("nll", T=t).mean for t in one.values("T") if t <= 1)
        below, above = one.mean("nll", T=1.0).mean / base, one.mean("nll", T=hottest).mean / base
        parts.append(f"{name} = {value:g}: × {below:.2f} at T = 1, × {above:.2f} at T = {hottest:g}")
    return f"of the least loss up to T = 1: {'; '.join(parts)}." + lost(here)


def _rises(fixed: str) -> Judge:
    return Judge(
        "of every curve, log of the test cross-entropy at T = 1 over 1.5 times its least up to T = 1, and log of twice "
        "that at T = 1 over that at the highest temperature",
        partial(_growth, fixed=fixed),
        partial(_shown_growth, fixed=fixed),
    )


def _least_by_size(rows: Rows) -> dict[int, BySeed]:
    here = rows.where(lr=_most_common(rows, "lr"))
    return {
        n: {seed: min(row["nll"] for row in here.where(N=n, seed=seed)) for seed in here.values("seed")}
        for n in sorted(here.values("N"))
    }


def _larger_sets(rows: Rows) -> Contrasts:
    least = _least_by_size(rows)
    return {f"N = {more:,} less N = {less:,}": minus(least[more], least[less]) for less, more in pairwise(least)}


def _shown_least(rows: Rows) -> str:
    least = _least_by_size(rows)
    return "least loss " + ", ".join(f"{fmean(v.values()):.3f} (N = {n:,})" for n, v in least.items()) + "."


_COLD = (
    "It begins to rise above T = 1, but mostly slowly: chains of a sixth of the paper's length start cold, at a "
    "solution of SGD, on a network of a quarter of the size."
)
EXPERIMENT = Experiment(
    title="Figure 7: a convolution network",
    settings={
        "quick": Settings(
            data="digits",
            image_size=8,
            channels=3,
            temperatures=(0.3, 1.0, 3.0),
            rates=(0.1,),
            sizes=(256, 1024),
            strength=5.0,
            fisher_batch=128,
            fisher_interval=10,
            updates_times_rate=6.0,
            averaged=0.2,
            start_steps=200,
            start_size=1437,
            seeds=1,
        ),
        "full": Settings(
            image_size=14,
            channels=5,
            temperatures=(0.1, 0.3, 1.0, 3.0, 10.0),
            rates=(0.05, 0.1, 0.2),
            sizes=(1024, 4096, 16384),
            fisher_interval=10,
            updates_times_rate=150.0,
            averaged=0.1,
            start_size=20_000,
            start_steps=2000,
            test_size=5000,
        ),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "At constant temperature the test cross-entropy hardly depends on the learning rate.",
            Judge(
                "log ratio of the test cross-entropies at every two learning rates, at each T ≤ 1 (0.22 is 25 %)",
                _between_rates,
                _shown_spreads,
                "within",
                0.22,
            ),
        ),
        Claim("For all learning rates it rises rapidly once T > 1.", _rises("N"), _COLD),
        Claim("For all training-set sizes it rises rapidly once T ≳ 1.", _rises("lr"), _COLD),
        Claim(
            "It rises as the training set shrinks.",
            Judge(
                "least test cross-entropy over the temperatures, less that at the next smaller N",
                _larger_sets,
                _shown_least,
            ),
        ),
    ],
    figure_size=(9, 3.6),
)

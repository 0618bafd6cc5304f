"""Figures 5 and 6: a network of 850 weights on ten random projections of MNIST, against the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from langevin.data import digits, projected_mnist
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation import scores
from langevin.models import MLP
from reproductions.harness import Claim, Experiment
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.rows import BySeed, Cell, Rows, minus

# λ = strength/N: λ‖ω‖² on the mean loss is a prior of precision 2·strength, ½λ‖ω‖² one of precision strength
READINGS = {"λ‖ω‖²": 2.0, "½λ‖ω‖²": 1.0}


@dataclass(frozen=True)
class Settings:
    """Section 6.3."""

    data: str = "mnist"
    sizes: tuple[int, ...] = (1024, 4096, 16384)
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    width: int = 40
    strength: float = 20.0
    damping: float = 0.1
    lr: float = 1 / 8
    fisher_batch: int = 1024
    fisher_interval: int = 1
    burn_in: int = 500
    samples: int = 500
    test_size: int = 10_000
    seeds: int = 3
    largest_times: float = 16.0  # batches from 1/16 to 16 times that of T = 1


def cells(settings: Settings) -> list[Cell]:
    """Batch sizes around that of T = 1, for each N; both readings of λ at the smallest N, the first at the others."""
    return [
        {"reading": reading, "N": size, "B": batch, "seed": seed}
        for seed in range(settings.seeds)
        for size in settings.sizes
        for reading in (READINGS if size == settings.sizes[0] else list(READINGS)[:1])
        for batch in settings.batch_sizes
        if batch < size and abs(math.log(batch / (settings.lr * size / 2))) <= math.log(settings.largest_times) + 1e-9
    ]


def measure(settings: Settings, workplace: Path, *, reading: str, N: int, B: int, seed: int) -> Cell:
    """Accuracy and cross-entropy of the ensemble of all samples and, on average, of one."""
    (x, y), (test_x, test_y) = _read_data(settings, N, seed)
    torch.manual_seed(seed)
    model = MLP(x.shape[1], 10, widths=(settings.width,))
    prior = lv.priors.Gaussian(std=(READINGS[reading] * settings.strength) ** -0.5)
    temperature = lv.samplers.temperature_of(settings.lr, N, B)
    try:
        run = lv.sample(
            lv.Posterior(model, lv.likelihoods.Categorical(), prior, num_data=N),
            (x, y),
            partial(
                lv.SNGD,
                lr=settings.lr,
                kind="mc",
                damping=settings.damping,
                batch_size=min(settings.fisher_batch, N),
                interval=settings.fisher_interval,
            ),
            steps=settings.burn_in + settings.samples,
            burn_in=settings.burn_in,
            thin=1,
            batch_size=B,
            freeze=False,
            seed=seed,
            progress=False,
        )
    except lv.DivergenceError:
        return {"T": temperature, **DIVERGED}
    return {"T": temperature, **ensemble_scores(run, test_x, test_y)}


# a run that diverged counts as guessing: it is the worst of its sweep, and is drawn
DIVERGED: Cell = {
    "diverged": True,
    "nll": math.log(10),
    "accuracy": 0.1,
    "single_nll": math.log(10),
    "single_accuracy": 0.1,
}


def ensemble_scores(run: Any, x: Tensor, y: Tensor, singles: int = 50) -> Cell:
    """Scores of the ensemble and the mean scores of some fifty of its members."""
    prediction = run.predict(x, batch_size=len(x), samples=True)
    assert isinstance(prediction, ClassPrediction)
    assert prediction.samples is not None
    members = prediction.samples[:: max(1, len(run) // singles)]
    return {
        "diverged": False,
        "nll": scores.negative_log_likelihood(prediction.probs, y),
        "accuracy": scores.accuracy(prediction.probs, y),
        "single_nll": sum(scores.negative_log_likelihood(p, y) for p in members) / len(members),
        "single_accuracy": sum(scores.accuracy(p, y) for p in members) / len(members),
    }


def _read_data(settings: Settings, size: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if settings.data == "digits":
        (x, y), (test_x, test_y) = digits("train").tensors, digits("test").tensors
        projection = torch.randn(64, 10, generator=torch.Generator().manual_seed(seed))
        return (x.flatten(1)[:size] @ projection, y[:size]), (test_x.flatten(1) @ projection, test_y)
    x, y = projected_mnist("train", size=size, seed=seed).tensors
    test_x, test_y = projected_mnist("test", size=settings.test_size, seed=seed).tensors
    return (x, y), (test_x, test_y)


def draw(figure: Any, rows: Rows) -> None:
    """Accuracy at the smallest N, then cross-entropy at each N; the line marks T = 1."""
    sizes = rows.values("N")
    axes = figure.subplots(1, 1 + len(sizes))
    panels = [("accuracy", sizes[0]), *(("nll", size) for size in sizes)]
    for panel, (name, size) in zip(axes, panels, strict=True):
        for reading in rows.where(N=size).values("reading"):
            here = rows.where(N=size, reading=reading)
            for kind, style in ((name, "-o"), (f"single_{name}", ":")):
                points = [here.mean(kind, B=b) for b in here.values("B")]
                colour = "tab:blue" if reading == next(iter(READINGS)) else "tab:orange"
                label = f"{'single' if kind.startswith('single') else 'ensemble'}, {reading}"
                panel.errorbar(
                    here.values("B"),
                    [p.mean for p in points],
                    [p.error for p in points],
                    fmt=style,
                    color=colour,
                    markersize=3,
                    label=label,
                )
        unit = next(row["B"] * row["T"] for row in rows.where(N=size))
        panel.axvline(unit, color="0.7", linewidth=1, zorder=0)
        panel.set_xscale("log")
        panel.set_xticks(rows.where(N=size).values("B"), [f"{b:,}" for b in rows.where(N=size).values("B")], fontsize=8)
        panel.set_xticks([], minor=True)
        if name == "nll":
            panel.set_yscale("log")
            panel.tick_params(axis="y", which="both", labelsize=7)
        panel.set(xlabel="batch size", title=f"{'accuracy' if name == 'accuracy' else 'cross-entropy'}, N = {size:,}")
    axes[0].legend(fontsize=6)


def lost(rows: Rows) -> str:
    """How many runs diverged, if any did."""
    count = sum(row["diverged"] for row in rows)
    return f" {count} of {len(rows)} runs diverged, and count as guessing." if count else ""


def _least_at_one(rows: Rows, number: int) -> Contrasts:
    """Loss at the batch size that is nearest to T = 1 less that where T is a factor of 2.5 or more away."""
    sizes = rows.values("N")
    if number >= len(sizes):
        raise NotJudged("this N was not run")
    found = {}
    for reading in rows.where(N=sizes[number]).values("reading"):
        here = rows.where(N=sizes[number], reading=reading)
        distance = {row["B"]: abs(math.log(row["T"])) for row in here}
        middle = min(distance, key=lambda batch: distance[batch])
        for batch in here.values("B"):
            if distance[batch] >= math.log(2.5):
                gap = here.difference("nll", {"B": middle}, {"B": batch})
                found[f"{reading}, B = {middle} less B = {batch}"] = gap
    return found


def _shown_optimum(rows: Rows, number: int) -> str:
    size = rows.values("N")[number]
    parts = []
    for reading in rows.where(N=size).values("reading"):
        here = rows.where(N=size, reading=reading)
        means = {b: here.mean("nll", B=b).mean for b in here.values("B")}
        best = min(means, key=lambda batch: means[batch])
        shown = ", ".join(f"{loss:.3f} (B = {batch})" for batch, loss in means.items())
        parts.append(f"{reading}: least at B = {best} (T = {here.where(B=best)[0]['T']:.2g}): {shown}")
    return "; ".join(parts) + "." + lost(rows.where(N=size))


def _optimum(number: int) -> Judge:
    return Judge(
        "test cross-entropy of the ensemble at the batch size nearest to T = 1 less that at each where T is a factor "
        "of 2.5 or more away, for every reading of λ that was run",
        partial(_least_at_one, number=number),
        partial(_shown_optimum, number=number),
    )


def _rise(rows: Rows, size: int) -> BySeed:
    """From the least loss to the mean of the two ends of the sweep."""
    here = rows.where(N=size, reading=next(iter(READINGS)))
    found = {}
    for seed in here.values("seed"):
        losses = [row["nll"] for row in sorted(here.where(seed=seed), key=lambda row: row["B"])]
        found[seed] = (losses[0] + losses[-1]) / 2 - min(losses)
    return found


def _flatter(rows: Rows) -> Contrasts:
    if len(rows.values("N")) < 2:
        raise NotJudged("one N only was run")
    return {
        f"N = {more:,} less N = {less:,}": minus(_rise(rows, more), _rise(rows, less))
        for less, more in pairwise(sorted(rows.values("N")))
    }


def _shown_rises(rows: Rows) -> str:
    rises = ", ".join(f"{fmean(_rise(rows, size).values()):.3f} (N = {size:,})" for size in rows.values("N"))
    return f"mean rise from the least loss to the two ends of the sweep, at the same T for all N: {rises}."


def _larger_batches(rows: Rows) -> Contrasts:
    found = {}
    for size in rows.values("N"):
        here = rows.where(N=size, reading=next(iter(READINGS)))
        for small, large in pairwise(sorted(here.values("B"))):
            gap = here.difference("single_nll", {"B": large}, {"B": small})
            found[f"N = {size:,}, B = {large} less B = {small}"] = gap
    return found


def _shown_steps(rows: Rows) -> str:
    means = [fmean(values.values()) for values in _larger_batches(rows).values()]
    return (
        f"from one batch size to the next larger the mean falls in {sum(m < 0 for m in means)} of {len(means)} steps."
    )


EXPERIMENT = Experiment(
    title="Figures 5 and 6: a network on ten projections of MNIST",
    settings={
        "quick": Settings(
            data="digits",
            sizes=(512,),
            batch_sizes=(8, 32, 128),
            width=10,
            fisher_batch=128,
            fisher_interval=4,
            burn_in=30,
            samples=30,
            seeds=1,
            strength=5.0,
        ),
        # a Fisher that is used for four steps makes it unstable, so it is of half as many examples instead
        "full": Settings(fisher_batch=512, test_size=5000, largest_times=4.0),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim("Figure 5: with N = 1,024 the ensemble's cross-entropy is least at B = εN/2 = 64.", _optimum(0)),
        Claim("Figure 6a: with N = 4,096 it is least at B = 256.", _optimum(1)),
        Claim("Figure 6b: with N = 16,384 there is a minimum near T ≈ 1 …", _optimum(2)),
        Claim(
            "… and the minimum becomes increasingly flat as N grows.",
            Judge(
                "rise of the test cross-entropy from its least to the mean of the two ends of the sweep, less that at "
                "the next smaller N",
                _flatter,
                _shown_rises,
            ),
        ),
        Claim(
            "The mean cross-entropy of a single sample always rises as the batch shrinks.",
            Judge(
                "mean test cross-entropy of a single sample less that at the next smaller batch size, at every N",
                _larger_batches,
                _shown_steps,
            ),
        ),
    ],
    figure_size=(13, 3.4),
)

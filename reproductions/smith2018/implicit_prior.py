"""Figure 4a: the implicit prior ½ log det(F + δI) along the true weights, for several dampings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from langevin.data import binary_logistic
from reproductions.harness import Claim, Experiment
from reproductions.judges import Contrasts, Judge
from reproductions.rows import BySeed, Cell, Rows, minus


@dataclass(frozen=True)
class Settings:
    """The paper does not print its dampings nor its norms."""

    features: int = 64
    num_data: int = 1000
    dampings: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    largest_norm: float = 32.0
    points: int = 65
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every damping on every data set."""
    return [{"damping": d, "seed": seed} for seed in range(settings.seeds) for d in settings.dampings]


def measure(settings: Settings, workplace: Path, *, damping: float, seed: int) -> Cell:
    """Log prior at norms from 0 up, minus its value at 0."""
    x = binary_logistic(size=settings.num_data, features=settings.features, seed=seed).tensors[0].double()
    norms = torch.linspace(0, settings.largest_norm, settings.points, dtype=torch.float64)
    identity = torch.eye(settings.features, dtype=torch.float64)
    values = []
    for norm in norms:
        p = torch.sigmoid(norm * x[:, 0])  # the true weights point along the first feature
        fisher = (x.T * (p * (1 - p))) @ x / len(x)
        values.append(float(torch.logdet(fisher + damping * identity)) / 2)
    return {"norms": norms.tolist(), "log_prior": [round(v - values[0], 4) for v in values]}


def draw(figure: Any, rows: Rows) -> None:
    """One curve per damping."""
    axes = figure.subplots()
    for damping in rows.values("damping"):
        row = rows.where(damping=damping)[0]
        axes.plot(row["norms"], row["log_prior"], label=f"δ = {damping:g}")
    axes.set(xlabel="|ω|", ylabel="log prior, less that at 0")
    axes.legend()


def _rises(rows: Rows) -> Contrasts:
    found = {}
    for damping in rows.values("damping"):
        found[f"largest rise, δ = {damping:g}"] = {
            row["seed"]: max(after - before for before, after in pairwise(row["log_prior"]))
            for row in rows.where(damping=damping)
        }
    return found


def _shown_fall(rows: Rows) -> str:
    drops = [row["log_prior"][-1] for row in rows.where(damping=rows.values("damping")[0])]
    return (
        f"from |ω| = 0 to {rows[0]['norms'][-1]:g} the log prior falls by {-max(drops):.0f} to {-min(drops):.0f} nats "
        "at the least damping."
    )


def _fall(rows: Rows, damping: float) -> BySeed:
    return {row["seed"]: -row["log_prior"][-1] for row in rows.where(damping=damping)}


def _softer(rows: Rows) -> Contrasts:
    return {
        f"fall with δ = {more:g} less that with {less:g}": minus(_fall(rows, more), _fall(rows, less))
        for less, more in pairwise(sorted(rows.values("damping")))
    }


def _shown_falls(rows: Rows) -> str:
    falls = [(d, fmean(_fall(rows, d).values())) for d in sorted(rows.values("damping"))]
    return f"the fall in nats: {', '.join(f'{fall:.1f} (δ = {d:g})' for d, fall in falls)}."


EXPERIMENT = Experiment(
    title="Figure 4a: the implicit prior",
    settings={"quick": Settings(points=9), "full": Settings(), "paper": Settings()},
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "The Jeffreys prior penalizes the norm of the weights.",
            Judge(
                "largest rise of the log prior from one norm to the next larger, at every damping (0.001: rounding)",
                _rises,
                _shown_fall,
                "below",
                0.001,
            ),
        ),
        Claim(
            "Increasing the damping softens the implicit prior.",
            Judge("fall of the log prior, less that with the next smaller damping", _softer, _shown_falls),
        ),
    ],
    figure_size=(5, 3.4),
)

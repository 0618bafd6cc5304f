"""Figure 4a: the implicit prior ½ log det(F + δI) along the true weights, for several dampings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from langevin.data import binary_logistic
from reproductions.harness import Cell, Claim, Experiment, Rows, Verdict


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


def _penalty(rows: Rows) -> Verdict:
    drops = [row["log_prior"][-1] for row in rows.where(damping=rows.values("damping")[0])]
    falls = all(
        later <= before + 1e-3
        for row in rows
        for before, later in zip(row["log_prior"], row["log_prior"][1:], strict=False)
    )
    low, high = min(drops), max(drops)
    return Verdict(
        f"the log prior falls all the way, by {-high:.0f} to {-low:.0f} nats up to |ω| = {rows[0]['norms'][-1]:g} at "
        f"the least damping.",
        falls,
    )


def _softer(rows: Rows) -> Verdict:
    drops = [-rows.where(damping=damping)[0]["log_prior"][-1] for damping in sorted(rows.values("damping"))]
    shown = ", ".join(f"{drop:.1f} (δ = {d:g})" for drop, d in zip(drops, sorted(rows.values("damping")), strict=True))
    return Verdict(f"the fall in nats: {shown}.", drops == sorted(drops, reverse=True))


EXPERIMENT = Experiment(
    title="Figure 4a: the implicit prior",
    settings={"quick": Settings(points=9, seeds=1), "full": Settings(), "paper": Settings()},
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim("The Jeffreys prior penalizes the norm of the weights.", _penalty),
        Claim("Increasing the damping softens the implicit prior.", _softer),
    ],
    figure_size=(5, 3.4),
)

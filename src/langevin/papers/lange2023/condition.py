"""Condition number of the Fisher and the empirical Fisher, with and without BNP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from langevin.diagnostics.curvature import conditioning
from langevin.loop import sample
from langevin.papers.harness import Cell, Claim, Experiment, Rows, Verdict
from langevin.papers.lange2023 import simulation
from langevin.posterior import load_tensors
from langevin.preconditioners import BNP
from langevin.samplers import SGLD


@dataclass(frozen=True)
class Settings:
    """The simulation's network, small enough for dense matrices, at several moments of an SGLD run."""

    num_data: int = 2000
    width: int = 20
    moments: tuple[int, ...] = (0, 100, 1000)
    lr: float = 0.03
    dampings: tuple[float, ...] = (1e-8, 5e-4)  # the Fisher all but itself, and with a standard normal prior's 1/N
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Both matrices at every moment."""
    return [
        {"kind": kind, "damping": damping, "step": step, "seed": seed}
        for seed in range(settings.seeds)
        for step in settings.moments
        for damping in settings.dampings
        for kind in ("exact", "empirical")
    ]


def measure(settings: Settings, workplace: Path, *, kind: Any, damping: float, step: int, seed: int) -> Cell:
    """λmax/λmin of F + δ and of PᵀFP + δ."""
    simulated = simulation.Settings(num_data=settings.num_data, width=settings.width)
    train, _ = simulation.simulated(simulated, seed)
    posterior = simulation.make_posterior(simulated, seed)
    if step:
        batch = simulated.batch_size
        sampler = partial(SGLD, lr=settings.lr)
        run = sample(posterior, train, sampler, steps=step, burn_in=0, thin=step, batch_size=batch, progress=False)
        load_tensors(posterior, run[-1])
    found = conditioning(posterior, train, kind=kind, preconditioner=BNP(), damping=damping)
    return {"condition": found.condition, "preconditioned": found.preconditioned_condition}


def draw(figure: Any, rows: Rows) -> None:
    """Condition numbers against steps."""
    panels = figure.subplots(1, 2, sharey=True)
    for panel, kind in zip(panels, ("exact", "empirical"), strict=True):
        here = rows.where(kind=kind, damping=rows[0]["damping"])
        for name, label in (("condition", "as it is"), ("preconditioned", "with BNP")):
            logs = [[math.log10(row[name]) for row in here.where(step=step)] for step in here.values("step")]
            panel.plot(range(len(logs)), [sum(v) / len(v) for v in logs], "o-", label=label)
        panel.set_xticks(range(len(here.values("step"))), here.values("step"))
        panel.set(title="Fisher" if kind == "exact" else "empirical Fisher", xlabel="steps of SGLD")
    panels[0].set_ylabel("log₁₀ of the condition number")
    panels[0].legend()


def _better(kind: str) -> Any:
    def judge(rows: Rows) -> Verdict:
        here = rows.where(kind=kind)
        logs = Rows({**row, "gain": math.log10(row["condition"] / row["preconditioned"])} for row in here)
        parts, answers = [], []
        for damping in logs.values("damping"):
            gains = [logs.mean("gain", step=step, damping=damping) for step in logs.values("step")]
            shown = ", ".join(f"{g} (step {s})" for g, s in zip(gains, logs.values("step"), strict=True))
            parts.append(f"δ = {damping:g}: {shown}")
            answers.append(all(gain.mean > 0 for gain in gains))
        return Verdict(f"its log₁₀ falls by, with F + δ, {'; '.join(parts)}.", answers[0], "(Judged at the least δ.)")

    return judge


EXPERIMENT = Experiment(
    title="Condition numbers with and without BNP",
    settings={
        "quick": Settings(num_data=200, width=5, moments=(0, 20), seeds=1),
        "full": Settings(),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim("BNP improves the condition number of the Fisher.", _better("exact")),
        Claim("BNP improves the condition number of the empirical Fisher.", _better("empirical")),
    ],
)

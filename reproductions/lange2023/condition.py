"""Condition number of the Fisher and the empirical Fisher, with and without BNP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import langevin as lv
from langevin.core.parameters import load_tensors
from langevin.diagnostics.curvature import conditioning
from reproductions.harness import Claim, Experiment
from reproductions.judges import Contrasts, Judge
from reproductions.lange2023 import simulation
from reproductions.rows import Cell, Rows

PARTS = {"whole network": None, "first layer": "layers.0.*", "last layer": "layers.1.*"}


@dataclass(frozen=True)
class Settings:
    """The simulation's network, small enough for dense matrices, at several steps of an SGLD run."""

    num_data: int = 2000
    width: int = 20
    moments: tuple[int, ...] = (0, 100, 1000)
    lr: float = 0.03
    dampings: tuple[float, ...] = (0.0, 5e-4)  # the Fisher itself, and with a standard normal prior's 1/N
    seeds: int = 8


def cells(settings: Settings) -> list[Cell]:
    """Both matrices at every step, of all weights and of each layer's."""
    return [
        {"kind": kind, "part": part, "damping": damping, "step": step, "seed": seed}
        for seed in range(settings.seeds)
        for step in settings.moments
        for damping in settings.dampings
        for part in PARTS
        for kind in ("exact", "empirical")
    ]


def measure(settings: Settings, workplace: Path, *, kind: Any, part: str, damping: float, step: int, seed: int) -> Cell:
    """λmax/λmin of F + δ and of Pᵀ(F + δ)P; None where the smallest is 0 but for rounding."""
    simulated = simulation.Settings(num_data=settings.num_data, width=settings.width)
    train, _ = simulation.simulated(simulated, seed)
    posterior = simulation.make_posterior(simulated, seed)
    if step:
        batch = simulated.batch_size
        run = lv.sample(
            posterior,
            train,
            lv.SGLD,
            lr=settings.lr,
            steps=step,
            burn_in=0,
            thin=step,
            batch_size=batch,
            progress=False,
        )
        load_tensors(posterior, run[-1])
    seen = lv.Posterior(
        posterior.model, posterior.likelihood, posterior.prior, num_data=settings.num_data, sampled=PARTS[part]
    )
    found = conditioning(seen, train, kind=kind, preconditioner=lv.preconditioners.BNP(), damping=damping)
    numbers = {"condition": found.condition, "preconditioned": found.preconditioned_condition}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def _known(rows: Rows) -> Rows:
    """The rows with both numbers, and by how many powers of ten BNP lowers the condition number."""
    return Rows(
        {**row, "gain": math.log10(row["condition"] / row["preconditioned"])}
        for row in rows
        if row["condition"] is not None and row["preconditioned"] is not None
    )


def draw(figure: Any, rows: Rows) -> None:
    """Condition numbers of the undamped matrices against steps."""
    panels = figure.subplots(1, 2, sharey=True)
    for panel, kind in zip(panels, ("exact", "empirical"), strict=True):
        for number, part in enumerate(PARTS):
            here = _known(rows.where(kind=kind, part=part, damping=rows[0]["damping"]))
            steps = here.values("step") if here else []
            for name, style in (("condition", "o-"), ("preconditioned", "s--")):
                logs = [[math.log10(row[name]) for row in here.where(step=step)] for step in steps]
                label = part + ("" if name == "condition" else ", with BNP")
                panel.plot(range(len(logs)), [sum(v) / len(v) for v in logs], style, color=f"C{number}", label=label)
        panel.set_xticks(range(len(rows.values("step"))), rows.values("step"))
        panel.set(title="Fisher" if kind == "exact" else "empirical Fisher", xlabel="steps of SGLD")
    panels[0].set_ylabel("log₁₀ of the condition number")
    panels[0].legend(fontsize=7)


def _losses(rows: Rows, kind: str) -> Contrasts:
    """log₁₀ of the condition number with BNP over that without."""
    known = _known(rows.where(kind=kind))
    found = {}
    for damping in rows.values("damping"):
        for part in PARTS:
            here = known.where(damping=damping, part=part)
            for step in here.values("step"):
                gains = here.by_seed("gain", step=step)
                found[f"{part}{_with_prior(damping)}, step {step}"] = {seed: -gain for seed, gain in gains.items()}
    return found


def _with_prior(damping: float) -> str:
    return f", with the prior (δ = {damping:g})" if damping else ""


def _shown_gains(rows: Rows, kind: str) -> str:
    known = _known(rows.where(kind=kind))
    parts = []
    for damping in rows.values("damping"):
        for part in PARTS:
            here = known.where(damping=damping, part=part)
            if here:
                gains = [(here.mean("gain", step=step), step) for step in here.values("step")]
                shown = ", ".join(f"{gain} (step {step})" for gain, step in gains)
                parts.append(f"{part}{_with_prior(damping)}: {shown}")
    return f"log₁₀ of the condition number falls by: {'; '.join(parts)}."


def _improves(kind: str) -> Judge:
    return Judge(
        "log₁₀ of the condition number with BNP over that without, of the whole network and of each layer, at every "
        "step, of the Fisher itself and with the prior's share of the curvature, which a sampler of the posterior has",
        partial(_losses, kind=kind),
        partial(_shown_gains, kind=kind),
        seeds=8,
    )


_PRIOR = (
    "The Fisher itself is better conditioned with BNP, in every part at every step (positive numbers above). With the "
    "prior the first layer and the whole network are worse: BNP does not know the prior's share of the curvature, and "
    "stretches it."
)
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
        Claim("BNP improves the condition number of the Fisher.", _improves("exact"), _PRIOR),
        Claim("BNP improves the condition number of the empirical Fisher.", _improves("empirical"), _PRIOR),
    ],
)

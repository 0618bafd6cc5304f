"""Figures 2, 3 and 4b: test loss of logistic regression with 63 irrelevant features against the temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional as F

import langevin as lv
from langevin.data import binary_logistic
from langevin.models import LogisticRegression
from reproductions.harness import Claim, Experiment
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.rows import BySeed, Cell, Rows

ARMS = (("NLD", 1e-4), ("SNGD", 1e-4), ("SNGD", 1e-2))  # figure 2, 3, 4b


@dataclass(frozen=True)
class Settings:
    """Section 6.1, second half; the paper does not print its temperatures nor the size of its test set."""

    features: int = 64
    num_data: int = 1000
    test_size: int = 10_000
    temperatures: tuple[float, ...] = (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 10.0)
    lr: float = 0.1
    burn_in: int = 1000
    samples: int = 1000
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every method and damping at every temperature."""
    return [
        {"method": method, "damping": damping, "T": t, "seed": seed}
        for seed in range(settings.seeds)
        for method, damping in ARMS
        for t in settings.temperatures
    ]


def measure(settings: Settings, workplace: Path, *, method: str, damping: float, T: float, seed: int) -> Cell:
    """Accuracy and cross-entropy of the ensemble and, on average, of its members."""
    options: dict[str, Any] = {"features": settings.features, "seed": seed}
    train = binary_logistic("train", size=settings.num_data, **options).tensors
    x, y = binary_logistic("test", size=settings.test_size, **options).tensors
    posterior = lv.Posterior(
        LogisticRegression(settings.features, bias=False),
        lv.likelihoods.Bernoulli(),
        lv.priors.Flat(),
        num_data=settings.num_data,
    )
    fisher: dict[str, Any] = {"damping": damping, "batch_size": settings.num_data}
    if method == "SNGD":
        sampler: Any = partial(lv.SNGD, lr=settings.lr, **fisher)
        batch_size = lv.samplers.batch_size_for(T, settings.lr, settings.num_data)
    else:
        sampler = partial(lv.NLD, lr=settings.lr, temperature=T, target="as-printed", **fisher)
        batch_size = settings.num_data
    run = lv.sample(
        posterior,
        train,
        sampler,
        steps=settings.burn_in + settings.samples,
        burn_in=settings.burn_in,
        thin=1,
        batch_size=batch_size,
        freeze=False,
        seed=seed,
        progress=False,
    )
    weights = torch.stack([s["linear.weight"][0] for s in run])
    logits = x @ weights.T  # (test, samples)
    labels = y[:, None].to(logits)
    single = F.binary_cross_entropy_with_logits(logits, labels.expand_as(logits))
    mean = torch.sigmoid(logits.double()).mean(1).clamp(1e-12, 1 - 1e-12)
    return {
        "batch_size": batch_size,
        "nll": float(F.binary_cross_entropy(mean, y.double())),
        "accuracy": float(((mean > 0.5) == (y == 1)).double().mean()),
        "single_nll": float(single),
        "single_accuracy": float(((logits > 0) == (labels == 1)).double().mean()),
        "norm": float(weights.norm(dim=1).mean()),
    }


def draw(figure: Any, rows: Rows) -> None:
    """Accuracy above, cross-entropy below; ensemble in blue, single samples in green."""
    axes = figure.subplots(2, len(ARMS), sharex=True, sharey="row")
    for column, (method, damping) in enumerate(ARMS):
        here = rows.where(method=method, damping=damping)
        for line, measure_ in enumerate(("accuracy", "nll")):
            panel = axes[line][column]
            for name, colour in ((measure_, "tab:blue"), (f"single_{measure_}", "tab:green")):
                points = [here.mean(name, T=t) for t in here.values("T")]
                panel.errorbar(
                    here.values("T"),
                    [p.mean for p in points],
                    [p.error for p in points],
                    color=colour,
                    marker="o",
                    markersize=3,
                    label="single sample" if name.startswith("single") else "ensemble",
                )
            panel.axvline(1, color="0.7", linewidth=1, zorder=0)
            panel.set_xscale("log")
        axes[1][column].set_yscale("log")
        axes[0][column].set_title(f"{method}, δ = {damping:g}")
        axes[1][column].set_xlabel("temperature")
    axes[0][0].set_ylabel("test accuracy")
    axes[1][0].set_ylabel("test cross-entropy")
    axes[0][0].legend(fontsize=7)


def best_temperature(rows: Rows, **key: Any) -> tuple[float, list[float]]:
    """The temperature with the least ensemble loss: of the mean over seeds, and of each seed."""
    here = rows.where(**key)
    overall = min(here.values("T"), key=lambda t: here.mean("nll", T=t).mean)
    return overall, [min(here.where(seed=s), key=lambda row: row["nll"])["T"] for s in here.values("seed")]


def _below_others(rows: Rows, method: str, damping: float, optimum: float) -> Contrasts:
    """Loss at the optimum less that at every temperature that is a factor of 2.5 or more away."""
    here = rows.where(method=method, damping=damping)
    if optimum not in here.values("T"):
        raise NotJudged(f"T = {optimum:g} was not run")
    return {
        f"T = {optimum:g} less T = {t:g} (δ = {damping:g})": here.difference("nll", {"T": optimum}, {"T": t})
        for t in here.values("T")
        if abs(math.log(t / optimum)) >= math.log(2.5)
    }


def _shown_curve(rows: Rows, method: str) -> str:
    best, each = best_temperature(rows, method=method, damping=1e-4)
    here = rows.where(method=method, damping=1e-4)
    curve = ", ".join(f"{here.mean('nll', T=t).mean:.3f}" for t in here.values("T"))
    return (
        f"least at T = {best:g} (single seeds: {', '.join(f'{t:g}' for t in each)}); cross-entropy at T = "
        f"{', '.join(f'{t:g}' for t in here.values('T'))}: {curve}."
    )


def _least_at_one(method: str) -> Judge:
    return Judge(
        f"{method}'s test cross-entropy at T = 1 less that at each temperature that is a factor of 2.5 or more away",
        partial(_below_others, method=method, damping=1e-4, optimum=1.0),
        partial(_shown_curve, method=method),
    )


def _to_singles(rows: Rows) -> Contrasts:
    """Ensemble less single sample, such that less is better, mean over the temperatures."""
    found: dict[str, BySeed] = {}
    for method in ("NLD", "SNGD"):
        here = rows.where(method=method, damping=1e-4)
        for name, sign in (("nll", 1), ("accuracy", -1)):
            found[f"{method}, {'cross-entropy' if sign == 1 else 'error rate'}"] = {
                seed: fmean(sign * (row[name] - row[f"single_{name}"]) for row in here.where(seed=seed))
                for seed in here.values("seed")
            }
    return found


def _shown_singles(rows: Rows) -> str:
    here = rows.where(damping=1e-4)
    lower = sum(row["nll"] < row["single_nll"] for row in here)
    higher = sum(row["accuracy"] >= row["single_accuracy"] for row in here)
    return f"lower cross-entropy in {lower} and no lower accuracy in {higher} of {len(here)} runs."


def _sngd_to_nld(rows: Rows) -> Contrasts:
    here = rows.where(damping=1e-4)
    return {
        f"log ratio at T = {t:g}": here.log_ratio("nll", {"method": "SNGD", "T": t}, {"method": "NLD", "T": t})
        for t in here.values("T")
    }


def _shown_sngd_to_nld(rows: Rows) -> str:
    here = rows.where(damping=1e-4)
    means = [(t, *(here.mean("nll", method=m, T=t).mean for m in ("SNGD", "NLD"))) for t in here.values("T")]
    shown = ", ".join(f"{ours:.3f} against {theirs:.3f} (T = {t:g})" for t, ours, theirs in means)
    return f"cross-entropy of SNGD against NLD: {shown}."


def _moved(rows: Rows) -> Contrasts:
    """T = 1 is the better with little damping, T = 2 with much, and then than everything further away."""
    found = {}
    for damping, better, worse in ((1e-4, 1.0, 2.0), (1e-2, 2.0, 1.0)):
        here = rows.where(method="SNGD", damping=damping)
        found[f"T = {better:g} less T = {worse:g} (δ = {damping:g})"] = here.difference(
            "nll", {"T": better}, {"T": worse}
        )
    return {**_below_others(rows, method="SNGD", damping=1e-2, optimum=2.0), **found}


def _shown_optima(rows: Rows) -> str:
    parts = []
    for damping in (1e-4, 1e-2):
        best, each = best_temperature(rows, method="SNGD", damping=damping)
        parts.append(f"T = {best:g} with δ = {damping:g} (single seeds: {', '.join(f'{t:g}' for t in each)})")
    return f"least at {', at '.join(parts)}."


EXPERIMENT = Experiment(
    title="Figures 2, 3, 4b: logistic regression with 63 irrelevant features",
    settings={
        "quick": Settings(temperatures=(0.3, 1.0, 10.0), burn_in=60, samples=60, test_size=1000, seeds=2),
        "full": Settings(),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "Figure 2: with Langevin noise the test cross-entropy of the ensemble is least at T = 1.",
            _least_at_one("NLD"),
        ),
        Claim("Figure 3: with mini-batch noise alone it is least at T = εN/(2B) = 1 too.", _least_at_one("SNGD")),
        Claim(
            "The ensemble outperforms single samples.",
            Judge(
                "test cross-entropy and error rate of the ensemble less those of single samples, mean over the "
                "temperatures, for NLD and for SNGD",
                _to_singles,
                _shown_singles,
            ),
        ),
        Claim(
            "The performance of NGD is remarkably similar to that of preconditioned Langevin.",
            Judge(
                "log of SNGD's test cross-entropy over NLD's, at every temperature (0.14 is 15 %)",
                _sngd_to_nld,
                _shown_sngd_to_nld,
                "within",
                0.14,
            ),
        ),
        Claim(
            "Figure 4b: damping 0.01 moves the optimum to T ≈ 2.",
            Judge(
                "SNGD's test cross-entropy with δ = 0.01 at T = 2 less that at T = 1 and at each temperature that is a "
                "factor of 2.5 or more away, and with δ = 0.0001 at T = 1 less that at T = 2",
                _moved,
                _shown_optima,
            ),
        ),
    ],
    figure_size=(10, 5.4),
)

"""Figures 2, 3 and 4b: test loss of logistic regression with 63 irrelevant features against the temperature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import langevin as lv
from langevin.data import binary_logistic
from langevin.models import LogisticRegression
from reproductions.harness import Cell, Claim, Experiment, Rows, Verdict

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


def _least_at_one(method: str) -> Any:
    def judge(rows: Rows) -> Verdict:
        best, each = best_temperature(rows, method=method, damping=1e-4)
        here = rows.where(method=method, damping=1e-4)
        curve = ", ".join(f"{here.mean('nll', T=t).mean:.3f}" for t in here.values("T"))
        return Verdict(
            f"least at T = {best:g} (single seeds: {', '.join(f'{t:g}' for t in each)}); cross-entropy at T = "
            f"{', '.join(f'{t:g}' for t in here.values('T'))}: {curve}.",
            0.5 <= best <= 2,
        )

    return judge


def _ensembles(rows: Rows) -> Verdict:
    better = [
        (row["nll"] < row["single_nll"], row["accuracy"] >= row["single_accuracy"])
        for row in rows
        if row["damping"] == 1e-4
    ]
    return Verdict(
        f"lower cross-entropy in {sum(a for a, _ in better)} and higher accuracy in {sum(b for _, b in better)} of "
        f"{len(better)} runs.",
        sum(a and b for a, b in better) > 0.9 * len(better),
    )


def _alike(rows: Rows) -> Verdict:
    here = rows.where(damping=1e-4)
    worst = max(
        here.values("T"),
        key=lambda t: abs(here.paired("nll", {"method": "SNGD", "T": t}, {"method": "NLD", "T": t}).mean),
    )
    gap = here.paired("nll", {"method": "SNGD", "T": worst}, {"method": "NLD", "T": worst})
    at_one = here.paired("nll", {"method": "SNGD", "T": 1.0}, {"method": "NLD", "T": 1.0})
    near = abs(at_one.mean) < 0.15 * here.mean("nll", method="NLD", T=1.0).mean
    return Verdict(
        f"cross-entropy of SNGD less that of NLD is {at_one} at T = 1 (alike: within 15 %), and at worst {gap}, at "
        f"T = {worst:g}.",
        near,
    )


def _damped(rows: Rows) -> Verdict:
    before, _ = best_temperature(rows, method="SNGD", damping=1e-4)
    after, each = best_temperature(rows, method="SNGD", damping=1e-2)
    return Verdict(
        f"least at T = {after:g} with δ = 0.01 (single seeds: {', '.join(f'{t:g}' for t in each)}), at {before:g} with "
        f"δ = 0.0001.",
        after > before and 2 <= after <= 3,
    )


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
        Claim("The ensemble outperforms single samples.", _ensembles),
        Claim("The performance of NGD is remarkably similar to that of preconditioned Langevin.", _alike),
        Claim("Figure 4b: damping 0.01 moves the optimum to T ≈ 2.", _damped),
    ],
    figure_size=(10, 5.4),
)

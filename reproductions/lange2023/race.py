"""What two experiments share: samplers race from one start, each at every rate of its grid, for as many steps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

import langevin as lv
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation import scores
from reproductions.harness import freeze_from, sample_or_resume
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.rows import Cell, Rows

LABELS = {"sgld": "SGLD", "psgld": "pSGLD", "ksgld": "KSGLD", "bnpsgld": "BNP-SGLD"}


def race(
    workplace: Path,
    posterior: lv.Posterior,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    method: str,
    lr: float,
    steps: int,
    every: int,
    batch_size: int,
    seed: int,
    options: dict[str, Any] | None = None,
) -> Cell:
    """Test loss of the running weights, every `every` steps, and of the ensemble of the second half."""
    half = steps // 2
    try:
        run = sample_or_resume(
            workplace,
            posterior,
            train,
            lv.samplers.SAMPLERS[method],
            lr=lr,
            **(options or {}),
            steps=steps,
            burn_in=0,  # samples of the running weights from the first step on
            thin=every,
            freeze=False,
            callbacks=[freeze_from(half)],
            batch_size=batch_size,
            seed=seed,
        )
    except lv.DivergenceError:
        return {"steps": None, "curve": None, "early": None, "final_nll": None, "final_accuracy": None}
    curve = [_nll(posterior, weights, *test) for weights in run]
    second_half = run[sum(step <= half for step in run.steps) :]
    prediction = second_half.predict(test[0], batch_size=1000)
    assert isinstance(prediction, ClassPrediction)
    return {
        "steps": run.steps,
        "curve": [round(value, 5) for value in curve],
        "early": statistics.fmean(curve[: max(1, len(curve) // 4)]),
        "final_nll": scores.negative_log_likelihood(prediction.probs, test[1]),
        "final_accuracy": scores.accuracy(prediction.probs, test[1]),
    }


@torch.no_grad()
def _nll(posterior: lv.Posterior, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> float:
    output = functional_call(posterior.model, dict(weights), (x,))
    return float(-posterior.likelihood.log_prob(output, y).mean())


def best_rates(rows: Rows, measure: str) -> dict[str, float]:
    """The learning rate of each method with the least mean `measure`, among those that diverged for no seed."""
    best = {}
    for method in rows.values("method"):
        here = rows.where(method=method)
        whole = [lr for lr in here.values("lr") if all(row[measure] is not None for row in here.where(lr=lr))]
        if whole:
            best[method] = min(whole, key=lambda lr: here.mean(measure, lr=lr).mean)
    return best


def draw_race(figure: Any, rows: Rows) -> None:
    """Test loss against steps, each method at its best rate for the first quarter; test loss of the ensemble."""
    left, right = figure.subplots(1, 2)
    best = best_rates(rows, "early")
    for method, lr in best.items():
        here = rows.where(method=method, lr=lr)
        curves = torch.tensor([row["curve"] for row in here])
        steps = here[0]["steps"]
        left.plot(steps, curves.mean(0), label=f"{LABELS[method]} (lr {lr:g})")
        if len(curves) > 1:
            error = curves.std(0) / len(curves) ** 0.5
            left.fill_between(steps, curves.mean(0) - error, curves.mean(0) + error, alpha=0.2)
    left.set(xlabel="steps", ylabel="test cross-entropy of the running weights", yscale="log")
    left.legend(fontsize=8)
    last = best_rates(rows, "final_nll")
    found = [rows.mean("final_nll", method=method, lr=lr) for method, lr in last.items()]
    right.errorbar(range(len(last)), [f.mean for f in found], [f.error for f in found], fmt="o")
    right.set_xticks(range(len(last)), [f"{LABELS[m]}\nlr {lr:g}" for m, lr in last.items()])
    right.set(ylabel="test cross-entropy of the ensemble")


def against_best(rows: Rows, measure: str, baselines: list[str]) -> Contrasts:
    """BNP-SGLD less each baseline, each at its best rate; a method that diverged at every rate has none."""
    best = best_rates(rows, measure)
    for method in ("bnpsgld", *baselines):
        if method in rows.values("method") and method not in best:
            raise NotJudged(f"{LABELS[method]} diverged at every rate")
    one = {"method": "bnpsgld", "lr": best["bnpsgld"]}
    return {
        f"BNP-SGLD less {LABELS[method]}": rows.difference(measure, one, {"method": method, "lr": best[method]})
        for method in baselines
    }


def _shown_start(rows: Rows) -> str:
    found = [f"{LABELS[m]} {rows.mean('early', method=m, lr=lr)}" for m, lr in best_rates(rows, "early").items()]
    return f"mean test cross-entropy over the first quarter, each at its best rate: {', '.join(found)}."


FASTER_START = Judge(
    "mean test cross-entropy over the first quarter of the steps, BNP-SGLD's less that of SGLD, pSGLD and KSGLD, each "
    "at the best rate of its grid",
    partial(against_best, measure="early", baselines=["sgld", "psgld", "ksgld"]),
    _shown_start,
)

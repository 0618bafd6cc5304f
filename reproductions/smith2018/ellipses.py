"""Figure 1: samples of a logistic regression of two weights against the Laplace approximation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import langevin as lv
from langevin.core.statistics import Estimate
from langevin.data import binary_logistic
from langevin.models import LogisticRegression
from reproductions.harness import Claim, Experiment
from reproductions.judges import Contrasts, Judge
from reproductions.rows import Cell, Rows

ARMS = ("NLD as-printed", "SNGD", "NLD jeffreys", "NLD posterior")


@dataclass(frozen=True)
class Settings:
    """Section 6.1."""

    num_data: int = 1000
    omega_true: tuple[float, float] = (16.0, 0.0)
    lr: float = 0.1
    damping: float = 1e-4
    batch_size: int = 50
    burn_in: int = 5000
    samples: int = 5000
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every arm on every data set."""
    return [{"method": method, "seed": seed} for seed in range(settings.seeds) for method in ARMS]


def measure(settings: Settings, workplace: Path, *, method: str, seed: int) -> Cell:
    """Mean and covariance of the samples, and of the Laplace approximation about the minimum."""
    x, y = binary_logistic(size=settings.num_data, omega_true=settings.omega_true, seed=seed).tensors
    posterior = lv.Posterior(
        LogisticRegression(2, bias=False),
        lv.likelihoods.Bernoulli(),
        lv.priors.Flat(),
        num_data=settings.num_data,
    )
    start = lv.find_map(posterior, (x, y))
    optimum = start["linear.weight"][0].double()
    fisher: dict[str, Any] = {"damping": settings.damping, "batch_size": settings.num_data}
    if method == "SNGD":
        sampler: Any = partial(lv.SNGD, lr=settings.lr, **fisher)
    else:
        target: Any = method.removeprefix("NLD ")
        sampler = partial(lv.NLD, lr=settings.lr, target=target, **fisher)
    run = lv.sample(
        posterior,
        (x, y),
        sampler,
        steps=settings.burn_in + settings.samples,
        burn_in=settings.burn_in,
        thin=1,
        batch_size=settings.batch_size if method == "SNGD" else settings.num_data,
        freeze=False,
        init=start,
        seed=seed,
        progress=False,
    )
    draws = torch.stack([s["linear.weight"][0] for s in run]).double()
    p = torch.sigmoid(x.double() @ optimum)
    laplace = torch.linalg.inv((x.double().T * (p * (1 - p))) @ x.double())
    covariance = torch.cov(draws.T)
    return {
        "optimum": optimum.tolist(),
        "laplace": laplace.tolist(),
        "mean": draws.mean(0).tolist(),
        "covariance": covariance.tolist(),
        "relative_error": float((covariance - laplace).norm() / laplace.norm()),
        "std_ratio": (covariance.diagonal() / laplace.diagonal()).sqrt().tolist(),
        "points": [[round(v, 3) for v in point] for point in draws[:: max(1, len(draws) // 400)].tolist()],
    }


def draw(figure: Any, rows: Rows) -> None:
    """Iterates in red, the Laplace approximation in blue, the covariance of the iterates in green, 3 std."""
    axes = figure.subplots(1, len(ARMS), sharex=True, sharey=True)
    for panel, method in zip(axes, ARMS, strict=True):
        row = rows.where(method=method, seed=0)[0]
        panel.plot(*zip(*row["points"], strict=True), ".", color="tab:red", markersize=2, alpha=0.5)
        panel.plot(*_ellipse(row["optimum"], row["laplace"]), color="tab:blue", label="Laplace")
        panel.plot(*row["optimum"], "o", color="tab:blue", markersize=4)
        panel.plot(*_ellipse(row["mean"], row["covariance"]), color="tab:green", label="samples")
        panel.set(title=method, xlabel="ω₁")
    axes[0].set_ylabel("ω₂")
    axes[0].legend(fontsize=7)


def _ellipse(mean: list[float], covariance: list[list[float]]) -> Any:
    angle = np.linspace(0, 2 * np.pi, 100)
    return np.array(mean)[:, None] + 3 * np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])


def _std_ratios(rows: Rows, method: str) -> Contrasts:
    here = rows.where(method=method)
    return {f"ω{i}": {row["seed"]: row["std_ratio"][i - 1] - 1 for row in here} for i in (1, 2)}


def _shown_ratios(rows: Rows, method: str) -> str:
    ratios = [_over_seeds([row["std_ratio"][i] for row in rows.where(method=method)]) for i in (0, 1)]
    error = rows.mean("relative_error", method=method)
    return f"standard deviations {ratios[0]} and {ratios[1]} of Laplace's; relative error of the covariance {error}."


def _sngd_to_nld(rows: Rows) -> Contrasts:
    variances = {
        method: {row["seed"]: row["covariance"] for row in rows.where(method=method)}
        for method in ("SNGD", "NLD as-printed")
    }
    ours, theirs = variances.values()
    return {
        f"ω{i + 1}": {seed: math.sqrt(ours[seed][i][i] / theirs[seed][i][i]) - 1 for seed in ours if seed in theirs}
        for i in (0, 1)
    }


def _shown_sngd_to_nld(rows: Rows) -> str:
    first, second = (_over_seeds([1 + v for v in values.values()]) for values in _sngd_to_nld(rows).values())
    return f"standard deviations of SNGD are {first} and {second} of NLD's."


def _over_seeds(values: list[float]) -> Estimate:
    return Rows({"v": v} for v in values).mean("v")


def _close_to_laplace(method: str) -> Judge:
    return Judge(
        f"standard deviation of {method}'s samples over Laplace's, less one, of either weight",
        partial(_std_ratios, method=method),
        partial(_shown_ratios, method=method),
        "within",
        0.15,
    )


EXPERIMENT = Experiment(
    title="Figure 1: samples of two weights against the Laplace approximation",
    settings={
        "quick": Settings(burn_in=50, samples=150, seeds=1),
        "full": Settings(),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "Samples of preconditioned Langevin at T = 1 are close to the Laplace approximation.",
            _close_to_laplace(ARMS[0]),
        ),
        Claim("Samples of NGD at B = εN/2 are close to the Laplace approximation.", _close_to_laplace("SNGD")),
        Claim(
            "The two stationary distributions are remarkably similar.",
            Judge(
                "standard deviation of SNGD's samples over NLD's, less one, of either weight",
                _sngd_to_nld,
                _shown_sngd_to_nld,
                "within",
                0.15,
            ),
        ),
    ],
    figure_size=(11, 3.2),
)

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
from reproductions.harness import Cell, Claim, Experiment, Rows, Verdict, clearly

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


def _close(method: str) -> Any:
    def judge(rows: Rows) -> Verdict:
        ratios = [_over_seeds([row["std_ratio"][i] for row in rows.where(method=method)]) for i in (0, 1)]
        error = rows.mean("relative_error", method=method)
        return Verdict(
            f"standard deviations {ratios[0]} and {ratios[1]} of Laplace's (close: within 15 % by two standard "
            f"errors); relative error of the covariance {error}.",
            _near_one(ratios),
        )

    return judge


def _alike(rows: Rows) -> Verdict:
    ratio = [
        _over_seeds(
            [
                math.sqrt(a["covariance"][i][i] / b["covariance"][i][i])
                for a, b in zip(rows.where(method="SNGD"), rows.where(method="NLD as-printed"), strict=True)
            ]
        )
        for i in (0, 1)
    ]
    return Verdict(
        f"standard deviations of SNGD are {ratio[0]} and {ratio[1]} of NLD's (alike: within 15 % by two standard "
        f"errors).",
        _near_one(ratio),
    )


def _near_one(ratios: list[Estimate], limit: float = 0.15) -> bool | None:
    """Whether all are within the limit by two standard errors; no as soon as one is as clearly outside."""
    answers = [clearly(Estimate(abs(ratio.mean - 1) - limit, ratio.error)) for ratio in ratios]
    return False if False in answers else True if all(answers) else None


def _over_seeds(values: list[float]) -> Estimate:
    return Rows({"v": v} for v in values).mean("v")


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
        Claim("Samples of preconditioned Langevin at T = 1 are close to the Laplace approximation.", _close(ARMS[0])),
        Claim("Samples of NGD at B = εN/2 are close to the Laplace approximation.", _close("SNGD")),
        Claim("The two stationary distributions are remarkably similar.", _alike),
    ],
    figure_size=(11, 3.2),
)

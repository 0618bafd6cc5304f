"""What `find_lr` finds, seed by seed, and how hot a run at that rate really is.

Batches are a twentieth of the data. On conjugate regression the stationary covariance of SGLD and SGHMC is known in
closed form, mini-batch noise included. Elsewhere a run of many chains at the smallest and at the largest of the rates
found is read by both thermometers; temperatures grow with the rate, so those of the other seeds lie between. Its chains
start at draws of the posterior, so that no direction is cold because it has not spread yet.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from benchmarks.gold import breast_cancer
from benchmarks.temperature import NOISE, Yacht, linear
from langevin.diagnostics.curvature import largest_curvature
from langevin.inference.environment import environment
from langevin.inference.find_lr import find_lr

Pair = tuple[Tensor, Tensor]
Start = Callable[[int], dict[str, Tensor]]


def exact_temperatures(lr: float, batch_size: int, momentum: float | None = None) -> Tensor:
    """T of SGLD, or of SGHMC at a momentum, on `linear` in every eigendirection of the precision, the stiffest last.

    With δ = θ − mode the gradient of a mini-batch is H_b δ + r_b, so a step is x ← K_b x + s_b + noise with x = δ, or
    x = (δ, u), and the second moments M = E[x xᵀ] solve M = E[K_b M K_bᵀ] + E[s_b s_bᵀ] + Cov(noise).
    """
    _, (x, y), precision, mode = linear()
    n, d = x.shape
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(n, generator=generator)[:batch_size] for _ in range(20_000)])
    features, rest = x.double()[chosen], (y[:, 0].double() - x.double() @ mode)[chosen]
    eye = torch.eye(d, dtype=torch.float64)
    hessians = features.mT @ features / (batch_size * NOISE**2) + eye / n
    slopes = mode / n - (features * rest[..., None]).sum(1) / (batch_size * NOISE**2)
    if momentum is None:
        step, moved, noise = eye - lr * hessians, -lr * slopes, 2 * lr / n * eye
    else:
        kick = (1 + momentum) / 2 * lr * n  # u ← momentum u − kick g + √(1 − momentum²) η,  δ ← δ + lr u
        lower = torch.cat([-kick * hessians, (momentum * eye).expand_as(hessians)], 2)
        above = torch.cat([eye.expand_as(hessians), torch.zeros_like(hessians)], 2) + lr * lower
        step, moved = torch.cat([above, lower], 1), torch.cat([-lr * kick * slopes, -kick * slopes], 1)
        noise = (1 - momentum**2) * torch.kron(torch.tensor([[lr * lr, lr], [lr, 1.0]]).double(), eye)
    size = step.shape[-1]
    moments = torch.einsum("bij,bkl->ikjl", step, step).reshape(size**2, size**2) / len(step)
    source = moved.T @ moved / len(moved) + noise
    covariance = torch.linalg.solve(torch.eye(size**2).double() - moments, source.flatten()).reshape(size, size)
    values, vectors = torch.linalg.eigh(precision)
    temperatures: Tensor = torch.diagonal(vectors.T @ covariance[:d, :d] @ vectors) * values
    return temperatures


@dataclass(frozen=True)
class Problem:
    """A posterior, its data, draws to start at, and how it is searched and sampled."""

    posterior: lv.Posterior
    data: Pair
    start: Start | None = None
    sampler: type[lv.Sampler] = lv.SGLD
    options: dict[str, Any] = field(default_factory=dict)
    exact: Callable[[float], Tensor] | None = None  # T by direction, at a rate
    chains: int = 64
    steps: int = 20_000
    probe: float = 0.2


def regression(sampler: type[lv.Sampler], **options: Any) -> Problem:
    """`linear`, whose posterior is Gaussian."""
    posterior, data, precision, mode = linear()
    exact = partial(exact_temperatures, batch_size=len(data[0]) // 20, momentum=options.get("momentum"))
    root = torch.linalg.cholesky(torch.linalg.inv(precision))

    def draw(chain: int) -> dict[str, Tensor]:
        eta = torch.randn(len(mode), generator=torch.Generator().manual_seed(chain), dtype=torch.float64)
        return {"weight": (mode + root @ eta)[None].float()}

    return Problem(posterior, data, draw, sampler, options, None if sampler is lv.pSGLD else exact)


def logistic() -> Problem:
    """Breast cancer; chains start at draws of a Gaussian at the mode."""
    posterior, train = breast_cancer()
    mode = lv.find_map(posterior, train, progress=False)
    laplace = lv.fit(posterior, train, lv.Laplace(structure="full"), init=mode, progress=False)
    return Problem(posterior, train, lambda chain: laplace[chain])


def yacht() -> Problem:
    """The network of `Yacht`; chains start at draws of HMC."""
    made = Yacht()
    return Problem(made.posterior(), (made.data[0], made.data[1]), made.start)


def digits(chains: int = 32) -> Problem:
    """An MLP of 3,760 weights; chains start at draws of SGHMC on all data, each from an optimum of its own."""
    x, y = lv.data.digits("train").tensors

    def posterior(seed: int) -> lv.Posterior:
        torch.manual_seed(seed)
        return lv.Posterior(lv.models.MLP(64, 10, widths=(50,)), lv.likelihoods.Categorical(), num_data=len(x))

    def optimum(chain: int) -> dict[str, Tensor]:
        options: dict[str, Any] = {"method": "sgd", "lr": 0.05, "steps": 3000, "batch_size": 64, "progress": False}
        return lv.find_map(posterior(chain), (x, y), **options)

    limit = 2 / math.sqrt(len(x) * largest_curvature(posterior(0), x, y))
    options: dict[str, Any] = {"batch_size": len(x), "chains": chains, "init": optimum, "progress": False, "probe": 0}
    run = lv.sample(
        posterior(0), (x, y), lv.SGHMC, lr=limit / 8, momentum=0.98, steps=4000, burn_in=3000, thin=1000, **options
    )
    return Problem(posterior(0), (x, y), lambda chain: dict(run.chain(chain)[-1]), chains=chains, steps=8000, probe=0.5)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "conjugate regression, SGLD": partial(regression, lv.SGLD),
    "conjugate regression, SGHMC": partial(regression, lv.SGHMC, momentum=0.9),
    "conjugate regression, pSGLD": partial(regression, lv.pSGLD),
    "logistic regression, SGLD": logistic,
    "yacht network, SGLD": yacht,
    "digits, SGLD": digits,
}


def run_rates(out: Path, seeds: int = 20, say: Callable[[str], None] = print, only: str = "") -> None:
    """Search and measure what has no row in `out/rates.json` yet; write it and `out/rates.md` after each.

    `only` is a part of the names of those problems that are to be measured.
    """
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rates.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"problems": []}
    results["environment"] = environment(torch.device("cpu"))
    for name, make in PROBLEMS.items():
        if only not in name or any(row["problem"] == name for row in results["problems"]):
            continue
        results["problems"].append(_row(name, make(), seeds, say))
        results["problems"].sort(key=lambda row: list(PROBLEMS).index(row["problem"]))
        path.write_text(json.dumps(results, indent=1) + "\n")
        (out / "rates.md").write_text(table(results))


def _row(name: str, problem: Problem, seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    size = len(problem.data[0]) // 20
    options: dict[str, Any] = {"batch_size": size, "progress": False, **problem.options}
    searched = []
    began = time.perf_counter()
    for seed in range(seeds):
        searched.append(find_lr(problem.posterior, problem.data, problem.sampler, seed=seed, **options))
        found = searched[-1]
        say(f"{name}, seed {seed}: lr {found.lr:.3g}, T {found.temperature:.3f}, stiffest {found.stiffest:.3f}")
    row: dict[str, Any] = {"problem": name, "batch_size": size, "seconds": (time.perf_counter() - began) / seeds}
    row["rates"] = [s.lr for s in searched]
    row["by_mean"] = [s.lr_by_mean for s in searched]
    row["expected"] = [[s.temperature, s.stiffest] for s in searched]
    if problem.exact is not None:
        exact = [problem.exact(lr) for lr in row["rates"]]
        row["mean"] = [[float(t.mean()), 0.0] for t in exact]
        row["stiffest"] = [[float(t[-1]), 0.0] for t in exact]
    else:
        many: dict[str, Any] = {"steps": problem.steps, "chains": problem.chains, "init": problem.start}
        many["probe"] = problem.probe
        runs = [
            lv.sample(problem.posterior, problem.data, problem.sampler, lr=lr, **many, **options)
            for lr in (min(row["rates"]), max(row["rates"]))
        ]
        row["mean"] = [list(run.temperature()) for run in runs]
        row["gradient"] = [list(run.gradient_temperature()) for run in runs]
        row["stiffest"] = [list(run.stiffest_temperature()) for run in runs]
    say(f"{name}: mean {row['mean']}, stiffest {row['stiffest']}, {row['seconds']:.1f} s a search")
    return row


def table(results: dict[str, Any]) -> str:
    """For a page."""
    lines = [
        "| problem | batch | lr | mean T expected | mean T | T along the stiffest direction expected | "
        "T along the stiffest direction | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["problems"]:
        expected = [_range([[pair[i], 0.0] for pair in row["expected"]]) for i in (0, 1)]
        lines.append(
            f"| {row['problem']} | {row['batch_size']} | {min(row['rates']):.2g} to {max(row['rates']):.2g} | "
            f"{expected[0]} | {_range(row['mean'])} | {expected[1]} | {_range(row['stiffest'])} | "
            f"{row['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _range(readings: list[list[float]]) -> str:
    ends = (min(readings), max(readings))
    return " to ".join(f"{m:.2f} ± {e:.2f}" if e and math.isfinite(e) else f"{m:.2f}" for m, e in ends)

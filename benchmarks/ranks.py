"""Does KSGLD mix worse with factors of low rank? Effective samples per gradient, on a network wider than the rank.

An MLP 64-256-256-10 (84,490 weights, tanh) on 1,000 digits, batches of 64. Every rank samples at the rate that
`find_lr` finds for the exact factors, from the same optimum, with the same seeds: any constant positive definite A
leaves the target as it is, so what a rank can change is how fast the chain moves, and how hot it is. Mixing is the
median over test inputs of the effective sample size of the log-probability of the true class, within a chain; the error
is over chains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from langevin.core.statistics import effective_sample_size, mean_and_error
from langevin.ensembles.prediction import ClassPrediction
from langevin.inference.environment import environment
from langevin.inference.find_lr import find_lr

RANKS = (None, 64, 16)
STEPS, CHAINS, THIN, BATCH = 6000, 4, 5, 64
PROBES = 200  # test inputs


def problem() -> tuple[lv.Posterior, tuple[Tensor, Tensor]]:
    """The network and its data."""
    x, y = lv.data.digits("train").tensors
    torch.manual_seed(0)
    model = lv.models.MLP(64, 10, widths=(256, 256), activation="tanh")
    prior = lv.priors.fan_in(model)
    return lv.Posterior(model, lv.likelihoods.Categorical(), prior, num_data=1000), (x[:1000], y[:1000])


def mixing(run: lv.Run) -> list[float]:
    """Of each chain the median effective sample size over test inputs."""
    x, y = (t[:PROBES] for t in lv.data.digits("test").tensors)
    found = []
    for chain in run.chains:
        prediction = run.chain(chain).predict(x, samples=True)
        assert isinstance(prediction, ClassPrediction)
        assert prediction.samples is not None
        of_truth = prediction.samples[:, torch.arange(len(y)), y].clamp_min(1e-12).log()
        found.append(float(effective_sample_size(of_truth).median()))
    return found


def run_ranks(out: Path, say: Callable[[str], None] = print) -> None:
    """Measure every rank that has no row in `out/ranks.json` yet; write it and `out/ranks.md` after each."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "ranks.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    results["environment"] = environment(torch.device("cpu"))
    posterior, train = problem()
    start = lv.find_map(posterior, train, method="sgd", lr=0.05, steps=2000, batch_size=BATCH, progress=False)
    if "lr" not in results:
        found = find_lr(posterior, train, lv.KSGLD, init=start, batch_size=BATCH, steps=2000, progress=False)
        results["lr"] = found.lr
    for rank in RANKS:
        if any(row["rank"] == rank for row in results["rows"]):
            continue
        sampler = partial(lv.KSGLD, lr=results["lr"], rank=rank)
        began = time.perf_counter()
        run = lv.sample(
            posterior,
            train,
            sampler,
            steps=STEPS,
            thin=THIN,
            chains=CHAINS,
            batch_size=BATCH,
            init=start,
            seed=1,
            progress=False,
        )
        sizes = [1000 * size / (STEPS - run.manifest["settings"]["burn_in"]) for size in mixing(run)]
        heat = run.gradient_temperature()
        results["rows"].append(
            {
                "rank": rank,
                "seconds": time.perf_counter() - began,
                "ess_per_1000_gradients": sizes,
                "gradient_temperature": list(heat),
            }
        )
        say(f"rank {rank}: {mean_and_error(*([size] for size in sizes))} ESS per 1,000 gradients, T {heat}")
        path.write_text(json.dumps(results, indent=1) + "\n")
        (out / "ranks.md").write_text(table(results))


def table(results: dict[str, Any]) -> str:
    """Mixing by rank, and less that of the exact factors, paired by chain."""
    lines = [
        "| rank of the factors | ESS per 1,000 gradients | over that of exact factors | T (gradient) |",
        "|---|---|---|---|",
    ]
    exact = torch.tensor(results["rows"][0]["ess_per_1000_gradients"])
    for row in results["rows"]:
        sizes = torch.tensor(row["ess_per_1000_gradients"])
        ratio = (sizes / exact).log()
        shown = f"{ratio.mean().exp():.2f} ± {ratio.mean().exp() * ratio.std() / len(ratio) ** 0.5:.2f}"
        mean, error = row["gradient_temperature"]
        lines.append(
            f"| {row['rank'] or 'exact'} | {sizes.mean():.2f} ± {sizes.std() / len(sizes) ** 0.5:.2f} | "
            f"{'' if row['rank'] is None else shown} | {mean:.2f} ± {error:.2f} |"
        )
    return "\n".join(lines) + "\n"

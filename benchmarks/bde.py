"""The autopilot beside bde (scikit-learn-contrib), which samples with MCLMC from a deep ensemble too.

Airfoil and bikesharing as in its paper: four hidden layers of 16 ReLUs, a heteroscedastic Gaussian, a test part of a
fifth. Both get the same numbers of chains and of steps, before and after burn-in is over, and the same threads; bde
runs in a Python environment of its own (`LANGEVIN_BDE_PYTHON`), right before ours. Its paper has one split,
`train_test_split(random_state=0)`, on which several seeds are run; test parts differ by more than seeds, so other
splits are run too, with one seed each.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import langevin as lv
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.prediction import ClassPrediction
from langevin.inference.environment import environment

SETS = ("airfoil", "bikesharing")
PUBLISHED = {"airfoil": (-0.913, 0.1215), "bikesharing": (-0.732, 0.2261)}  # 50,000 + 10,000 steps
CHAINS = 10
_PEER = """
import json, sys, time
import numpy as np
from bde import BdeRegressor
data, chains, burn_in, steps, seed = np.load(sys.argv[1]), *map(int, sys.argv[2:6])
began = time.perf_counter()
model = BdeRegressor(
    n_members=chains, hidden_layers=[16, 16, 16, 16], seed=seed, epochs=1000, patience=20, lr=5e-3,
    warmup_steps=burn_in, n_samples=steps, n_thinning=max(1, steps // 100),
)
model.fit(data["x"], data["y"])
mean, std = (np.asarray(each).ravel().tolist() for each in model.predict(data["test_x"], mean_and_std=True))
print(json.dumps({"mean": mean, "std": std, "seconds": time.perf_counter() - began}))
"""


def run_bde(
    out: Path,
    names: Iterable[str],
    budgets: Iterable[tuple[int, int]],
    say: Callable[[str], None] = print,
    threads: int = 2,
    seeds: int = 3,
    splits: int = 1,
) -> None:
    """Run the rows that are missing, and write results and page."""
    python = os.environ.get("LANGEVIN_BDE_PYTHON")
    if not python:
        raise ValueError(
            "bde runs in an environment of its own: `python -m venv DIR`, `DIR/bin/pip install sklearn-contrib-bde`, "
            "and LANGEVIN_BDE_PYTHON=DIR/bin/python."
        )
    torch.set_num_threads(threads)
    file = out / "bde.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    runs = [(0, seed) for seed in range(seeds)] + [(split, 0) for split in range(1, splits)]
    for name, (burn_in, steps), (split, seed) in itertools.product(names, budgets, runs):
        what = {"set": name, "burn_in": burn_in, "steps": steps, "split": split, "seed": seed}
        if any(what.items() <= row.items() for row in rows):
            continue
        row = what | {"threads": threads} | measured(name, burn_in, steps, split, seed, python, threads)
        row |= {"environment": environment(torch.device("cpu"))}
        rows.append(row)
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows, indent=1) + "\n")
        which = f"split {split}, seed {seed}"
        say(f"{name}, {burn_in:,} + {steps:,} steps, {which}: bde {row['bde']}, langevin {row['langevin']}")
    (out / "bde.md").write_text(table(rows))


def measured(name: str, burn_in: int, steps: int, split: int, seed: int, python: str, threads: int) -> dict[str, Any]:
    """Both on one split of a set with one budget and one seed."""
    x, y, test_x, test_y = parts(name, split)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.npz")
        np.savez(data, x=x.numpy(), y=y.numpy(), test_x=test_x.numpy())
        flags = (
            f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'} intra_op_parallelism_threads={threads}"
        )
        told = subprocess.run(
            [python, "-c", _PEER, str(data), *map(str, (CHAINS, burn_in, steps, seed))],
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "XLA_FLAGS": flags},
            capture_output=True,
            text=True,
            check=True,
        )
    peer = json.loads(told.stdout.splitlines()[-1])
    mean, std = torch.tensor(peer["mean"]), torch.tensor(peer["std"])
    began = time.perf_counter()
    run = sampled(x, y, burn_in, steps, seed)
    predicted = run.predict(test_x)
    seconds = time.perf_counter() - began
    assert not isinstance(predicted, ClassPrediction)
    ours = scores(predicted.mean.flatten(), predicted.variance.flatten(), test_y)
    ensemble: Ensemble = run.warm_start
    start = ensemble.predict(test_x)
    assert not isinstance(start, ClassPrediction)
    return {
        "bde": scores(mean, std.square(), test_y) | {"seconds": peer["seconds"]},
        "langevin": ours | {"seconds": seconds},
        "deep ensemble": scores(start.mean.flatten(), start.variance.flatten(), test_y),
        "verdict": str(run.verdict()),
        "tuning": [str(decision) for decision in run.tuning],
    }


def sampled(x: torch.Tensor, y: torch.Tensor, burn_in: int, steps: int, seed: int) -> lv.Run:
    """The autopilot with so many steps of each chain after the warm start, burn-in included."""
    torch.manual_seed(seed)
    widths = [x.shape[1], 16, 16, 16, 16]
    layers = [each for a, b in pairwise(widths) for each in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(16, 2))
    likelihood = lv.likelihoods.HeteroscedasticGaussian()
    posterior = lv.Posterior(model, likelihood, lv.priors.Gaussian(1.0), num_data=len(x))
    budget = f"{burn_in + steps} steps"
    return lv.sample(posterior, (x, y[:, None]), lv.MCLMC, chains=CHAINS, budget=budget, seed=seed, progress=False)


def parts(name: str, split: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, y to train on and to test, standardized by the first."""
    from sklearn.model_selection import train_test_split

    file = Path(os.environ.get("LANGEVIN_DATA", "")) / "uci" / name / "data.txt"
    if not file.exists():
        raise ValueError(f"{name} is read from LANGEVIN_DATA/uci/{name}/data.txt, which does not exist.")
    table = np.loadtxt(file)
    train, test = train_test_split(np.arange(len(table)), test_size=0.2, random_state=split)
    mean, std = table[train].mean(0), table[train].std(0)
    scaled = torch.tensor((table - mean) / np.where(std > 0, std, 1.0), dtype=torch.float32)
    return scaled[train, :-1], scaled[train, -1], scaled[test, :-1], scaled[test, -1]


def scores(mean: torch.Tensor, variance: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """The negative log-likelihood of the Gaussian of the same moments, and RMSE, on the standardized scale."""
    nll = 0.5 * ((y - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    return {"nll": round(float(nll.mean()), 4), "rmse": round(float((y - mean).square().mean().sqrt()), 4)}


def table(rows: list[dict[str, Any]]) -> str:
    """The split of the paper over seeds, all splits with one seed each, and what bde's paper says."""
    lines = [
        "| set | steps | runs | bde: NLL | RMSE | seconds | langevin: NLL | RMSE | seconds | langevin − bde: NLL | RMSE"
        " | deep ensemble: NLL |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys((row["set"], row["burn_in"], row["steps"]) for row in rows))
    for name, burn_in, steps in sorted(kinds):
        mine = [row for row in rows if (row["set"], row["burn_in"], row["steps"]) == (name, burn_in, steps)]
        by_seed = [row for row in mine if row["split"] == 0]
        by_split = [row for row in mine if row["seed"] == 0]
        seeds = f"{len(by_seed)} seed{'s' if len(by_seed) > 1 else ''}"
        for what, own in ((f"split 0, {seeds}", by_seed), (f"{len(by_split)} splits, 1 seed", by_split)):
            if len(own) > 1 or own is by_seed:
                lines.append(f"| {name} | {burn_in:,} + {steps:,} | {what} | {' | '.join(_cells(own))} |")
    published = "; ".join(f"{name} {nll} and {rmse}" for name, (nll, rmse) in PUBLISHED.items())
    threads = " and ".join(sorted({f"{row['threads']}" for row in rows}))
    lines += ["", f"Means ± standard errors over runs, differences paired, median seconds with {threads} threads."]
    lines += ["", f"Published by bde for 50,000 + 10,000 steps on split 0, NLL and RMSE: {published}."]
    return "\n".join(lines) + "\n"


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for who in ("bde", "langevin"):
        cells += [_mean([row[who][what] for row in rows]) for what in ("nll", "rmse")]
        cells.append(f"{statistics.median(row[who]['seconds'] for row in rows):.0f}")
    cells += [_mean([row["langevin"][what] - row["bde"][what] for row in rows], "+") for what in ("nll", "rmse")]
    return [*cells, _mean([row["deep ensemble"]["nll"] for row in rows])]


def _mean(values: list[float], sign: str = "") -> str:
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.3f}{error}"

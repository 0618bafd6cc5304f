"""The autopilot on regression sets that others publish figures for: one unchanged call on every row.

A cell is one split of one set: the network, `lv.sample(posterior, train)`, and scores on the test part. Cells are kept
in a file each, so the command continues where it was stopped.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import langevin as lv
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.prediction import ClassPrediction
from langevin.inference.environment import environment

FOLDS = {
    "yacht": 20,
    "concrete": 20,
    "energy": 20,
    "wine-quality-red": 20,
    "power-plant": 5,
    "protein": 5,
}
WIDTHS = {"protein": 100}  # of the hidden layer; 50 for the others
PUBLISHED = {
    "yacht": 1.18,
    "concrete": 2.93,
    "energy": 1.21,
    "wine-quality-red": 0.93,
    "power-plant": 2.79,
    "protein": 2.83,
}
PROTOTYPE = {"yacht": -0.71, "concrete": 2.58, "energy": -0.08, "wine-quality-red": 0.66}  # on the first split


def run_autopilot(
    out: Path,
    names: Iterable[str],
    folds: int | None,
    say: Callable[[str], None] = print,
    threads: int = 1,
    summary_file: Path | None = None,
) -> None:
    """Run the cells that are missing, and write the page, and the summary where README.md has its place."""
    torch.set_num_threads(threads)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    for name in names:
        for fold in range(min(FOLDS[name], folds or FOLDS[name])):
            file = out / "cells" / f"{name}-{fold}.json"
            if not file.exists():
                row = cell(name, fold)
                file.write_text(json.dumps(row, indent=1) + "\n")
                say(f"{name} {fold}: {row['ensemble']['nll']:.3f} → {row['run']['nll']:.3f}, {row['seconds']:.0f} s")
    (out / "README.md").write_text(page(out))
    if summary_file is not None:
        before, begin, rest = summary_file.read_text().partition("<!-- autopilot -->\n")
        summary_file.write_text(before + begin + summary(out) + rest[rest.index("<!-- end -->") :])


def cell(name: str, fold: int) -> dict[str, Any]:
    """One split."""
    train, test = (lv.data.uci(name, part, fold=fold) for part in ("train", "test"))
    (x, y), (test_x, test_y) = train.tensors, test.tensors
    width = WIDTHS.get(name, 50)
    torch.manual_seed(fold)
    model = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, 2))
    posterior = lv.Posterior(model, lv.likelihoods.HeteroscedasticStudentT(), lv.priors.Gaussian(1.0), num_data=len(x))
    began, computed = time.perf_counter(), time.process_time()
    run = lv.sample(posterior, (x, y), seed=fold, progress=False)
    seconds, computed = time.perf_counter() - began, time.process_time() - computed
    scale = float(train.target_std)
    return {
        "set": name,
        "fold": fold,
        "seconds": seconds,
        "cpu_seconds": computed,  # of one core, whatever else the machine does
        "run": scores(run, test_x, test_y, scale),
        "ensemble": scores(run.warm_start, test_x, test_y, scale),
        "one": statistics.fmean(scores(run.warm_start[i : i + 1], test_x, test_y, scale)["nll"] for i in range(3)),
        "samples": len(run),
        "temperature": list(run.temperature()),
        "verdict": str(run.verdict()),
        "tuning": [str(decision) for decision in run.tuning],
        "environment": environment(torch.device("cpu")),
    }


def scores(ensemble: Ensemble, x: Tensor, y: Tensor, scale: float) -> dict[str, float]:
    """Of the predictive mixture, in the units of the data."""
    logs = torch.stack(list(ensemble.log_probs(x, y))).detach().double()
    nll = -(logs.logsumexp(0) - math.log(len(logs))).mean() + math.log(scale)
    predicted = ensemble.predict(x)
    assert not isinstance(predicted, ClassPrediction)
    error = (predicted.mean - y).double().square().mean().sqrt() * scale
    return {"nll": float(nll), "rmse": float(error)}


def page(out: Path) -> str:
    """The table, from the cells that there are."""
    rows = [json.loads(file.read_text()) for file in sorted((out / "cells").glob("*.json"))]
    lines = [
        "# The autopilot on regression sets",
        "",
        "Written by `python -m benchmarks autopilot`. One call, `lv.sample(posterior, train)`, on every row: a network "
        "with one hidden layer of 50 ReLUs (protein 100) and two outputs, mean and scale of Student's t with 4 degrees "
        "of freedom (`HeteroscedasticStudentT()`), prior N(0, 1). "
        "Negative log-likelihood of the predictive mixture in the units of the data, mean and standard error over the "
        "standard splits. The deep ensemble is the warm start of the same run: the difference is paired over splits. "
        "Published: the best of deep ensemble and MC dropout. Prototype: on the first split.",
        "",
        "| set | splits | published | one network | deep ensemble | autopilot | autopilot − ensemble | its median | "
        "first split (prototype) | RMSE | CPU seconds (median) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in FOLDS:
        mine = [row for row in rows if row["set"] == name]
        if not mine:
            continue
        nll, ensemble = ([row[kind]["nll"] for row in mine] for kind in ("run", "ensemble"))
        first = next((row["run"]["nll"] for row in mine if row["fold"] == 0), math.nan)
        gain = [a - b for a, b in zip(nll, ensemble, strict=True)]
        timed = [row["cpu_seconds"] for row in mine if "cpu_seconds" in row]
        computed = f"{statistics.median(timed):.0f}" if timed else ""
        beside = f" ({PROTOTYPE[name]:.2f})" if name in PROTOTYPE else ""
        lines.append(
            f"| {name} | {len(mine)} | {PUBLISHED[name]:.2f} | {_mean([row['one'] for row in mine])} | "
            f"{_better(ensemble, nll)} | {_better(nll, ensemble)} | {_mean(gain)} | {statistics.median(gain):.2f} | "
            f"{first:.2f}{beside} | {_mean([row['run']['rmse'] for row in mine])} | {computed} |"
        )
    return "\n".join(lines) + "\n"


def summary(out: Path) -> str:
    """The sets of 20 splits: published, our own deep ensemble, the autopilot."""
    rows = [json.loads(file.read_text()) for file in sorted((out / "cells").glob("*.json"))]
    lines = [
        "| test NLL (splits) | published, best of deep ensemble and MC dropout | deep ensemble, its warm start | "
        "`lv.sample(posterior, train)` |",
        "|---|---|---|---|",
    ]
    for name in FOLDS:
        mine = [row for row in rows if row["set"] == name]
        if len(mine) >= 20:
            ensemble, run = ([row[kind]["nll"] for row in mine] for kind in ("ensemble", "run"))
            both = f"{_better(ensemble, run)} | {_better(run, ensemble)}"
            lines.append(f"| {name} ({len(mine)}) | {PUBLISHED[name]:.2f} | {both} |")
    return "\n".join(lines) + "\n"


def _better(values: list[float], others: list[float]) -> str:
    """The mean, in bold if it is the lower one."""
    return f"**{_mean(values)}**" if statistics.fmean(values) < statistics.fmean(others) else _mean(values)


def _mean(values: list[float]) -> str:
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"

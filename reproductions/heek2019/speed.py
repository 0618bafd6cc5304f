"""Section 5.2: seconds per epoch of SGD, ATMC and SGD with BatchNorm."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import langevin as lv
from reproductions.harness import Cell, Claim, Experiment, Rows, Verdict
from reproductions.heek2019.networks import make_posterior
from reproductions.heek2019.runs import Settings as Network
from reproductions.heek2019.table import FULL, IMAGENET, QUICK
from reproductions.layout import memory_format

ARMS = ("SGD", "ATMC", "SGD + BatchNorm")


@dataclass(frozen=True)
class Settings:
    """ResNet-50 on images of ImageNet's size at batch 1,024, as in the paper; ours is one device, the paper's a TPU."""

    network: Network = IMAGENET.settings["paper"]
    steps: int = 20  # of each method in each round
    rounds: int = 10


def cells(settings: Settings) -> list[Cell]:
    """Rounds, in each of which the methods take turns, so that other load on the machine affects all of them."""
    return [{"seed": seed} for seed in range(settings.rounds)]


def measure(settings: Settings, workplace: Path, *, seed: int) -> Cell:
    """Seconds per epoch of each method: processor time on a CPU, wall-clock time on an accelerator."""
    network = settings.network
    loops = {}
    for method in ARMS:
        posterior = make_posterior(network, method, seed)
        device = next(posterior.parameters()).device
        channels = 1 if network.data in ("digits", "fashion-mnist") else 3
        x = torch.randn(network.batch_size, channels, network.image_size, network.image_size, device=device)
        y = torch.randint(network.classes, (network.batch_size,), device=device)
        make = lv.ATMC if method == "ATMC" else partial(lv.SGD, momentum=network.momentum)
        sampler = make(posterior.parameters(), lr=1e-5, num_data=network.num_data)
        x = x.contiguous(memory_format=memory_format(network.width))
        loops[method] = partial(_seconds, posterior, sampler, x, y)
    for loop in loops.values():
        loop(1)  # warm-up
    epoch = network.num_data / network.batch_size / settings.steps
    return {"batch_size": network.batch_size} | {name: loop(settings.steps) * epoch for name, loop in loops.items()}


def _seconds(posterior: Any, sampler: Any, x: Any, y: Any, steps: int) -> float:
    clock = time.process_time if x.device.type == "cpu" else time.perf_counter
    began = clock()
    for _ in range(steps):
        sampler.zero_grad()
        posterior.loss(x, y).backward()
        sampler.step()
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def draw(figure: Any, rows: Rows) -> None:
    """Seconds per epoch."""
    axes = figure.subplots()
    found = [rows.mean(name) for name in ARMS]
    axes.bar(ARMS, [f.mean for f in found], yerr=[0 if math.isnan(f.error) else f.error for f in found], color="0.6")
    axes.set(ylabel="seconds per epoch, one core")


def _ratio(rows: Rows, one: str, other: str) -> Any:
    return Rows({"ratio": row[one] / row[other] - 1} for row in rows).mean("ratio")


def _as_fast(rows: Rows) -> Verdict:
    more = _ratio(rows, "ATMC", "SGD")
    measured = f"ATMC takes {more.mean:+.1%} ± {more.error:.1%} of SGD's time, on the same network."
    why = "(The same: within 10 %, with two standard errors to spare either way.)"
    if math.isnan(more.error) or abs(abs(more.mean) - 0.1) < 2 * more.error:
        return Verdict(measured, None, why)
    return Verdict(measured, abs(more.mean) < 0.1, why)


def _slower(rows: Rows) -> Verdict:
    more = _ratio(rows, "SGD + BatchNorm", "SGD")
    measured = f"the ResNet with BatchNorm takes {more.mean:+.1%} ± {more.error:.1%} of ResNet++'s time."
    why = "(Some 20 %: from 10 to 30 %, with two standard errors to spare either way.)"
    if math.isnan(more.error) or abs(abs(more.mean - 0.2) - 0.1) < 2 * more.error:
        return Verdict(measured, None, why)
    return Verdict(measured, abs(more.mean - 0.2) < 0.1, why)


EXPERIMENT = Experiment(
    title="Section 5.2: time per epoch",
    settings={
        "quick": Settings(QUICK, steps=2, rounds=2),
        "full": Settings(FULL),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim("There is no significant difference in time per epoch of SGD and ATMC.", _as_fast),
        Claim(
            "BatchNorm costs some 20 % of time over ResNet++.",
            _slower,
            "On a processor SELU's exponentials and weight normalization cost more than ReLU and BatchNorm.",
        ),
    ],
    figure_size=(5, 3.4),
)

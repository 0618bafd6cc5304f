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
from reproductions.harness import Claim, Experiment
from reproductions.heek2019.networks import make_posterior
from reproductions.heek2019.runs import Settings as Network
from reproductions.heek2019.table import FULL, IMAGENET, QUICK
from reproductions.judges import Contrasts, Judge
from reproductions.layout import memory_format
from reproductions.rows import Cell, Rows

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


def _more_time(rows: Rows, one: str, other: str, expected: float) -> Contrasts:
    name = f"time of {one} over that of {other}, less {1 + expected:g}"
    return {name: {row["seed"]: row[one] / row[other] - 1 - expected for row in rows}}


def _shown_time(rows: Rows, one: str, other: str, words: str) -> str:
    more = Rows({"ratio": row[one] / row[other] - 1} for row in rows).mean("ratio")
    return words.format(f"{more.mean:+.1%} ± {more.error:.1%}")


def _time(one: str, other: str, expected: float, words: str) -> Judge:
    return Judge(
        f"time per epoch of {one} over that of {other}, less {1 + expected:g}, in each round",
        partial(_more_time, one=one, other=other, expected=expected),
        partial(_shown_time, one=one, other=other, words=words),
        "within",
        0.1,
        seeds=10,
    )


AS_FAST = _time("ATMC", "SGD", 0.0, "ATMC takes {} of SGD's time, on the same network.")
SLOWER = _time("SGD + BatchNorm", "SGD", 0.2, "the ResNet with BatchNorm takes {} of ResNet++'s time.")
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
        Claim("There is no significant difference in time per epoch of SGD and ATMC.", AS_FAST),
        Claim(
            "BatchNorm costs some 20 % of time over ResNet++.",
            SLOWER,
            "On a processor SELU's exponentials and weight normalization cost more than ReLU and BatchNorm.",
        ),
    ],
    figure_size=(5, 3.4),
)

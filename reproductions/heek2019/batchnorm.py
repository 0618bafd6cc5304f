"""Section 4: with BatchNorm or dropout a sampler adds noise to noise, and underfits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reproductions.harness import Claim, Experiment
from reproductions.heek2019.claims import better
from reproductions.heek2019.runs import Settings, cells, measure
from reproductions.heek2019.table import FULL, QUICK
from reproductions.rows import Rows

ARMS = ("ATMC", "ATMC + dropout", "ATMC + BatchNorm", "SGD + BatchNorm")


def draw(figure: Any, rows: Rows) -> None:
    """NLL of training images at the end, in evaluation mode, and the test loss against epochs."""
    left, right = figure.subplots(1, 2)
    here = rows.where(seed=0, diverged=None)
    left.bar([row["method"].replace(" + ", " +\n") for row in here], [row["train"]["nll"] for row in here], color="0.6")
    left.set(ylabel="NLL of training images, last weights")
    left.tick_params(axis="x", labelsize=8)
    for row in here:
        right.plot(row["epochs"], row["curve"], "o-", markersize=3, label=row["method"])
    right.set(xlabel="epochs", ylabel="test NLL of the running weights")
    right.legend(fontsize=8)


EXPERIMENT = Experiment(
    title="Section 4: ATMC with BatchNorm or dropout",
    settings={
        "quick": replace(QUICK, methods=ARMS, cycles=2),
        "full": replace(FULL, methods=ARMS, cycles=4, test_size=2000),
        "paper": Settings(methods=ARMS),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "With dropout ATMC underfits: it fits the training images less well than without.",
            better(("nll", ("ATMC", "train"), ("ATMC + dropout", "train"))),
        ),
        Claim(
            "With BatchNorm ATMC underfits: it fits the training images less well than without, on ResNet++, …",
            better(("nll", ("ATMC", "train"), ("ATMC + BatchNorm", "train"))),
            "In a chain of a few epochs BatchNorm's quicker start outweighs the noise that it adds.",
        ),
        Claim(
            "… and less well than SGD does with the same network.",
            better(("nll", ("SGD + BatchNorm", "train"), ("ATMC + BatchNorm", "train"))),
        ),
    ],
    figure_size=(9, 3.6),
)

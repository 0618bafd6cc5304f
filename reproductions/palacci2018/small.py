"""Figure 3: MNIST cut down to 5,000 training images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import langevin as lv
from langevin.evaluation import scores
from langevin.evaluation.inputs import class_prediction_of
from reproductions.harness import Claim, Experiment
from reproductions.judges import Judge
from reproductions.palacci2018 import training
from reproductions.palacci2018.claims import MARGIN
from reproductions.palacci2018.drawing import draw_small
from reproductions.palacci2018.judging import at_best, by_method, by_pair, listed, percent, repeats
from reproductions.palacci2018.mnist import accuracies
from reproductions.palacci2018.training import FULL, LANGEVIN, OURS, QUICK
from reproductions.rows import Cell, Rows


@dataclass(frozen=True)
class Settings(training.Settings):
    """Section 4.3. Ten epochs are 98 steps, in which plain SGD does not fit the reduced network: it gets thirty."""

    train_size: int = 5_000


def measure(settings: Settings, workplace: Path, **cell: Any) -> Cell:
    """Accuracy on training, validation and test images."""
    data = training.read_data(settings)
    try:
        run = training.train(settings, workplace, **cell)
    except lv.DivergenceError:
        return {"validation": None}
    found = training.ensemble(settings, run, cell["method"])
    row = accuracies(settings, run, found, data)
    on_train = class_prediction_of(found, data.train[0]).probs
    return {
        "validation": scores.accuracy(class_prediction_of(found, data.validation[0]).probs, data.validation[1]),
        "train_accuracy": scores.accuracy(on_train, data.train[1]),
        "train_nll": scores.negative_log_likelihood(on_train, data.train[1]),
        "fall": max(row["curve"]) - row["curve"][-1],
        **row,
    }


def _shown_fall(rows: Rows) -> str:
    chosen = at_best(rows)
    return (
        f"SGD gets {percent(chosen.mean('train_accuracy', method='SGD'))} of the training images right and "
        f"{percent(chosen.mean('accuracy', method='SGD'))} of the test images; its test accuracy ends "
        f"{percent(chosen.mean('fall', method='SGD'))} below its maximum on the way."
    )


OVERFITS = Judge(
    "SGD's highest test accuracy on the way less its last (half a point is a decrease)",
    partial(by_method, name="fall", methods=["SGD"]),
    _shown_fall,
    "above",
    MARGIN,
)


def _shown(rows: Rows, methods: list[str]) -> str:
    return f"test accuracy {listed(at_best(rows), 'accuracy', methods)}."


BELOW = Judge(
    "test accuracy of each of the three Langevin methods less SGD's",
    partial(by_pair, name="accuracy", pairs=[(method, "SGD") for method in LANGEVIN]),
    partial(_shown, methods=["SGD", *LANGEVIN, *OURS]),
)
MATCHES = Judge(
    "SGD's test accuracy less that of constant-rate SGD (the paper's text says SGDA; half a point is a difference)",
    partial(by_pair, name="accuracy", pairs=[("SGD", "FSGD")]),
    partial(_shown, methods=["SGD", "FSGD"]),
    "below",
    MARGIN,
)


EXPERIMENT = Experiment(
    title="Figure 3: small-MNIST",
    settings={
        "quick": Settings(**{**QUICK, "train_size": 400}),
        "full": Settings(**FULL, epochs=30, thin=2),
        "paper": Settings(),
    },
    cells=training.cells,
    measure=measure,
    draw=draw_small,
    claims=[
        Claim(
            "The network overfits promptly, resulting in decreases in the test accuracy.",
            OVERFITS,
            "The reduced network, with a prior, does not come to the point within its epochs.",
        ),
        Claim("The Langevin methods underperform SGD on small-MNIST …", BELOW),
        Claim("… and only constant-rate SGD matches it.", MATCHES),
    ],
    further=repeats,
)

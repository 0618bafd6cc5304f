"""Figure 3: MNIST cut down to 5,000 training images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import langevin as lv
from langevin.evaluation import scores
from langevin.evaluation.inputs import class_prediction_of
from reproductions.harness import Cell, Claim, Experiment, Rows, Verdict
from reproductions.palacci2018 import training
from reproductions.palacci2018.claims import MARGIN
from reproductions.palacci2018.drawing import draw_small
from reproductions.palacci2018.judging import all_below, at_best, difference, listed, negative, percent, repeats
from reproductions.palacci2018.mnist import accuracies
from reproductions.palacci2018.training import FULL, LANGEVIN, OURS, QUICK


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


def _overfits(rows: Rows) -> Verdict:
    chosen = at_best(rows)
    if not chosen.where(method="SGD"):
        return Verdict("SGD diverged at every point.", None)
    return Verdict(
        f"SGD gets {percent(chosen.mean('train_accuracy', method='SGD'))} of the training images right and "
        f"{percent(chosen.mean('accuracy', method='SGD'))} of the test images; its test accuracy ends "
        f"{percent(chosen.mean('fall', method='SGD'))} below its maximum on the way.",
        all_below([negative(chosen.mean("fall", method="SGD"))], -MARGIN),
        f"(A decrease: clearly more than {100 * MARGIN:g} points.)",
    )


def _below(rows: Rows) -> Verdict:
    chosen = at_best(rows)
    return Verdict(
        f"test accuracy {listed(chosen, 'accuracy', ['SGD', *LANGEVIN])}; {listed(chosen, 'accuracy', OURS)}.",
        all_below(difference(chosen, "accuracy", method, "SGD") for method in LANGEVIN),
        "(Below: by two standard errors of the paired differences, for all three.)",
    )


def _matches(rows: Rows) -> Verdict:
    chosen = at_best(rows)
    return Verdict(
        f"test accuracy {listed(chosen, 'accuracy', ['SGD', 'FSGD'])}.",
        all_below([difference(chosen, "accuracy", "SGD", "FSGD")], MARGIN),
        f"(To match: at most {100 * MARGIN:g} points below, by two standard errors. The paper's text says SGDA.)",
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
            _overfits,
            "The reduced network, with a prior, does not come to the point within its epochs.",
        ),
        Claim("The Langevin methods underperform SGD on small-MNIST …", _below),
        Claim("… and only constant-rate SGD matches it.", _matches),
    ],
    further=repeats,
)

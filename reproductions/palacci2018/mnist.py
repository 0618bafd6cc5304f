"""Figures 1, 2 and 4 and table 1: accuracy, mixing, attacks and notMNIST, all from the same runs on MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from langevin.core.statistics import mess_diagonal
from langevin.diagnostics.stationarity import stationarity
from langevin.evaluation import scores
from langevin.evaluation.attacks import predictive_gradient
from langevin.evaluation.inputs import class_prediction_of
from langevin.evaluation.ood import confidence_histogram, out_of_distribution
from reproductions.harness import Claim, Experiment
from reproductions.palacci2018 import claims, training
from reproductions.palacci2018.drawing import draw_all
from reproductions.palacci2018.judging import repeats
from reproductions.palacci2018.training import FULL, QUICK, Data
from reproductions.rows import Cell


@dataclass(frozen=True)
class Settings(training.Settings):
    """Section 4; the ε of the attack is not stated, nor which parameters' traces were examined."""

    probes: int = 1000  # weights whose traces are examined, drawn at random
    attacked: int = 1000  # test images
    eps: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # of pixels from 0 to 1


def measure(settings: Settings, workplace: Path, **cell: Any) -> Cell:
    """Everything that the four figures and tables need of one run."""
    data = training.read_data(settings)
    try:
        run = training.train(settings, workplace, **cell)
    except lv.DivergenceError:
        return {"validation": None}
    found = training.ensemble(settings, run, cell["method"])
    return {
        "validation": scores.accuracy(class_prediction_of(found, data.validation[0]).probs, data.validation[1]),
        **accuracies(settings, run, found, data),
        **convergence(settings, run),
        **ood_scores(found, data),
        "attack": attack(settings, found, data),
    }


def accuracies(settings: training.Settings, run: lv.Run, found: lv.Ensemble, data: Data) -> Cell:
    """Test accuracy of the prediction, and of the running weights at each look."""
    x, y = data.test
    probs = class_prediction_of(found, x).probs
    looks = range(1, settings.looks + 1)
    ends = [len(run) * look // settings.looks for look in looks]
    return {
        "accuracy": scores.accuracy(probs, y),
        "nll": scores.negative_log_likelihood(probs, y),
        "epochs": [settings.epochs * look / settings.looks for look in looks],
        "curve": [scores.accuracy(class_prediction_of(run[end - 1 : end], x).probs, y) for end in ends],
    }


def convergence(settings: Settings, run: lv.Run) -> Cell:
    """Diagonal mESS up to each look; of the second half, mESS per draw and the share of stationary traces."""
    draws = probed(settings, run)
    ends = [len(run) * look // settings.looks for look in range(1, settings.looks + 1)]
    tail = draws[len(draws) // 2 :]
    tests = [stationarity({"weight": {0: trace}})[0].stationary for trace in tail.T.tolist()]
    return {
        "draws": ends,
        "mess": [mess_diagonal(draws[:end]) for end in ends],
        "mess_share": mess_diagonal(tail) / len(tail),
        "settled": float((halves_rhat(tail) < 1.1).mean()),
        "stationary": tests.count(True) / len(tests),
        "perhaps_stationary": (tests.count(True) + tests.count(None)) / len(tests),
    }


def halves_rhat(draws: Tensor) -> Any:
    """R̂ of each column, its two halves taken as two chains."""
    import arviz

    half = len(draws) // 2
    halves = torch.stack([draws[:half], draws[-half:]]).double().numpy()
    data = arviz.convert_to_dataset({"x": halves})  # type: ignore[no-untyped-call]
    return arviz.rhat(data, method="identity")["x"].values  # type: ignore[no-untyped-call]


def probed(settings: Settings, run: lv.Run) -> Tensor:
    """The traces of some weights, (samples, weights)."""
    size = sum(tensor.numel() for tensor in run[0].values())
    chosen = torch.randperm(size, generator=torch.Generator().manual_seed(0))[: settings.probes]
    return torch.stack([torch.cat([t.flatten() for t in sample.values()])[chosen] for sample in run])


def ood_scores(found: lv.Ensemble, data: Data) -> Cell:
    """Mean confidence on out-of-distribution images, and how well confidence tells them from test images."""
    inside, outside = class_prediction_of(found, data.test[0]), class_prediction_of(found, data.outside)
    return {
        "confidence": float(outside.confidence.double().mean()),
        "confidence_inside": float(inside.confidence.double().mean()),
        "histogram": [round(share, 5) for share in confidence_histogram(outside.probs)[1].tolist()],
        "auroc": out_of_distribution(inside, outside)["max probability"].auroc,
    }


def attack(settings: Settings, found: lv.Ensemble, data: Data) -> list[list[float]]:
    """[ε, accuracy] under FGSM against the prediction itself; one gradient serves every ε."""
    x, y = (part[: settings.attacked] for part in data.test)
    sign = predictive_gradient(found, x, y).sign()
    curve = []
    for eps in settings.eps:
        attacked = (x + eps * (data.white - data.black) * sign).clamp(data.black, data.white)
        curve.append([eps, scores.accuracy(class_prediction_of(found, attacked).probs, y)])
    return curve


EXPERIMENT = Experiment(
    title="Figures 1, 2 and 4, table 1: accuracy, mixing, attacks and notMNIST",
    settings={
        "quick": Settings(**QUICK, probes=20, attacked=100, eps=(0.0, 0.1, 0.25)),
        "full": Settings(**FULL, thin=3),
        "paper": Settings(),
    },
    cells=training.cells,
    measure=measure,
    draw=draw_all,
    claims=[
        Claim("Figure 1: the test accuracies of all methods are very close …", claims.CLOSE),
        Claim("… and Bayesian averaging does not improve them.", claims.NO_GAIN),
        Claim("Figure 2: all chains mix poorly.", claims.MIXES_POORLY),
        Claim("Almost none of the parameters' traces are stationary.", claims.NOT_STATIONARY),
        Claim("Table 1: nobody resists adversarial examples.", claims.FALLS_TO_ATTACKS),
        Claim("Figure 4: all methods but SGD are less sure on notMNIST.", claims.LESS_CONFIDENT),
        Claim("Langevin methods improve the detection of notMNIST.", claims.DETECTS),
        Claim("Constant-rate SGD works just as well as the Langevin methods.", claims.AS_GOOD),
    ],
    figure_size=(11, 7.5),
    further=repeats,
)

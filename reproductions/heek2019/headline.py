"""The paper's headline on Fashion-MNIST: ATMC from SGD's optimum, against SGD, MAP and an ensemble of MAPs.

Elsewhere on the page chains start at random weights, and their length decides. Here a chain starts at the MAP estimate
that SGD found under the same prior, and there are two priors: the paper's, and a wide one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

import langevin as lv
from langevin.evaluation import scores
from langevin.models import CifarResNetPP
from reproductions.harness import Claim, Experiment, sample_or_resume
from reproductions.heek2019 import runs, table
from reproductions.heek2019.networks import training_data
from reproductions.judges import Contrasts, Judge, NotJudged
from reproductions.layout import memory_format
from reproductions.rows import BySeed, Cell, Rows, minus

NETWORKS = ("ResNet++", "SELU CNN")
PRIORS = ("paper's", "wide")
NO_PRIOR = "none"
METHODS = ("SGD", "MAP", "ensemble of MAPs", "ATMC")


@dataclass(frozen=True)
class Settings(runs.Settings):
    """With a second network, the wide prior, and the ensemble."""

    channels: tuple[int, int] = (16, 32)  # of the SELU CNN
    units: int = 128
    gain: float = 3.0  # std = gain/√fan_in of the wide prior; 1 is what SELU preserves the scale of activations with
    members: int = 4


def cells(settings: Settings) -> list[Cell]:
    """Both networks, without a prior (SGD) and with each (MAP, the ensemble, ATMC)."""
    return [
        {"network": network, "prior": prior, "seed": seed}
        for seed in range(settings.seeds)
        for network in NETWORKS
        for prior in (NO_PRIOR, *PRIORS)
    ]


def make_posterior(settings: Settings, network: str, prior: str, seed: int) -> lv.Posterior:
    """The network at its initialization; the paper's prior is, of the SELU CNN, fan-in with gain 1."""
    torch.manual_seed(seed)
    if network == "ResNet++":
        model: nn.Module = CifarResNetPP(settings.depth, width=settings.width, num_classes=10, in_channels=1)
        # weights of one output are a unit direction times its scale, so their std is scale/√fan_in
        directions: dict[str, Any] = {
            "*scale": lv.priors.Gaussian(settings.gain),
            "*direction": lv.priors.UnitDirection(),
        }
        papers, wide = lv.priors.resnetpp(), lv.priors.PerParameter({**directions, "*": lv.priors.Gaussian(1.0)})
    else:
        model = selu_cnn(settings)
        papers, wide = (lv.priors.fan_in(model, gain=gain) for gain in (1.0, settings.gain))
    chosen: dict[str, Any] = {NO_PRIOR: lv.priors.Flat(), "paper's": papers, "wide": wide}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device=device, memory_format=memory_format(settings.width))  # type: ignore[call-overload]
    return lv.Posterior(model, lv.likelihoods.Categorical(), chosen[prior], num_data=settings.num_data)


def selu_cnn(settings: Settings) -> nn.Module:
    """Two convolutions 3×3 with max-pooling and a dense layer, SELU, initialized with std 1/√fan_in."""
    first, second = settings.channels
    model = nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.SELU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.SELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (settings.image_size // 4) ** 2, settings.units),
        nn.SELU(),
        nn.Linear(settings.units, 10),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    return model


def measure(settings: Settings, workplace: Path, *, network: str, prior: str, seed: int) -> Cell:
    """Test scores of SGD (without a prior), or of MAP, of the ensemble and of ATMC (with one)."""
    try:
        found, y = _predictions(settings, workplace, network, prior, seed)
    except lv.DivergenceError as error:
        return {"data": settings.data, "diverged": str(error).partition(str(workplace))[0]}
    if not all(bool(probs.isfinite().all()) for probs in found.values()):
        return {"data": settings.data, "diverged": "its predictions are not finite."}
    row: Cell = {"data": settings.data, "diverged": None}
    row |= {method: _scored(probs.mean(0), y) for method, probs in found.items()}
    if "ATMC" in found:
        row["by_samples"] = runs.by_samples(found["ATMC"], y)
    return row


def _predictions(
    settings: Settings, workplace: Path, network: str, prior: str, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Of each method the class probabilities from each of its members, (members, images, classes), and the labels."""
    optima = []
    for member in range(1 if prior == NO_PRIOR else settings.members):
        start = 1000 * seed + member  # the first has the same start and batches, whatever the prior
        optima.append(_optimize(settings, workplace / f"sgd{member}", network, prior, start))
    looked = [runs.predictions(settings, run, "test", settings.test_size) for run in optima]
    y = looked[0][1]
    members = torch.cat([probs for probs, _ in looked])
    if prior == NO_PRIOR:
        return {"SGD": members}, y
    chain = _sample(settings, workplace / "atmc", network, prior, seed, dict(optima[0][-1]))
    samples, _ = runs.predictions(settings, chain, "test", settings.test_size)
    return {"MAP": members[:1], "ensemble of MAPs": members, "ATMC": samples}, y


def _optimize(settings: Settings, workplace: Path, network: str, prior: str, seed: int) -> lv.Run:
    """SGD with a learning rate that falls twice, from the initialization; its last weights alone are saved."""
    steps = max(2, round(settings.sgd_epochs * settings.num_data / settings.batch_size))
    return sample_or_resume(
        workplace,
        make_posterior(settings, network, prior, seed),
        training_data(settings),
        lv.SGD,
        lr=settings.sgd_lr,
        momentum=settings.momentum,
        steps=steps,
        burn_in=0,
        thin=steps,
        schedule=partial(MultiStepLR, milestones=[round(share * steps) for share in settings.falls], gamma=0.1),
        batch_size=settings.batch_size,
        seed=seed,
    )


def _sample(
    settings: Settings, workplace: Path, network: str, prior: str, seed: int, start: dict[str, Tensor]
) -> lv.Run:
    """ATMC with a cyclical learning rate; a sample at the end of each cycle after burn-in."""
    return sample_or_resume(
        workplace,
        make_posterior(settings, network, prior, seed),
        training_data(settings),
        lv.ATMC,
        lr=settings.lr,
        max_speed=settings.max_speed,
        momentum=settings.friction,
        thermostat_rate=settings.thermostat_rate,
        steps=settings.cycles * settings.cycle,
        burn_in=round(settings.burn_in_cycles) * settings.cycle,
        thin=settings.cycle,
        schedule=lv.cyclical(settings.cycle),
        batch_size=settings.batch_size,
        init=start,
        seed=seed,
    )


def _scored(probs: Tensor, y: Tensor) -> Cell:
    return {
        "accuracy": round(scores.accuracy(probs, y), 5),
        "nll": round(scores.negative_log_likelihood(probs, y), 5),
        "calibration": round(scores.calibration_error(probs, y), 5),
    }


def draw(figure: Any, rows: Rows) -> None:
    """NLL against calibration error of each seed, one panel for each network."""
    for panel, network in zip(figure.subplots(1, len(NETWORKS)), NETWORKS, strict=True):
        for number, method in enumerate(METHODS):
            for prior, marker in zip((NO_PRIOR, *PRIORS), "xo^", strict=True):
                here = [row[method] for row in rows.where(network=network, prior=prior, diverged=None) if method in row]
                if here:
                    x, y = [row["calibration"] for row in here], [row["nll"] for row in here]
                    label = method if prior == NO_PRIOR else f"{method}, {prior} prior"
                    panel.plot(x, y, marker, color=f"C{number}", label=label)
        panel.set(title=network, xlabel="calibration error", ylabel="test NLL")
        panel.legend(fontsize=7)


def _score(rows: Rows, network: str, prior: str, method: str, score: str) -> BySeed:
    found = {}
    for row in rows.where(network=network, prior=prior):
        if row["diverged"]:
            raise NotJudged(f"{network}, prior {prior}, diverged at seed {row['seed']}: {row['diverged']}")
        found[row["seed"]] = row[method][score]
    return found


def _gaps(rows: Rows, network: str, prior: str, score: str, others: list[tuple[str, str]]) -> Contrasts:
    ours = _score(rows, network, prior, "ATMC", score)
    return {
        f"ATMC less {_label(method, other)}": minus(ours, _score(rows, network, other, method, score))
        for method, other in others
    }


def _shown(rows: Rows, network: str, prior: str, score: str, others: list[tuple[str, str]]) -> str:
    found = [("ATMC", prior), *others]
    values = [(_label(m, p), fmean(_score(rows, network, p, m, score).values())) for m, p in found]
    return f"{score} " + ", ".join(f"{label} {value:.4f}" for label, value in values) + "."


def _label(method: str, prior: str) -> str:
    return method if prior == NO_PRIOR else f"{method} ({prior} prior)"


def _beats(network: str, prior: str, score: str, others: list[tuple[str, str]]) -> Judge:
    names = " and ".join(_label(method, other) for method, other in others)
    return Judge(
        f"{score} of ATMC's predictive under the {prior} prior less that of {names}, on {network}",
        partial(_gaps, network=network, prior=prior, score=score, others=others),
        partial(_shown, network=network, prior=prior, score=score, others=others),
    )


def _claims(network: str, prior: str) -> list[Claim]:
    where = f"({network}, {prior} prior)"
    single = [("SGD", NO_PRIOR), ("MAP", prior)]
    ensembles = [("ensemble of MAPs", other) for other in PRIORS]
    return [
        Claim(f"ATMC's predictive beats SGD and MAP in likelihood {where} …", _beats(network, prior, "nll", single)),
        Claim(f"… and is better calibrated {where}.", _beats(network, prior, "calibration", single)),
        Claim(
            f"(ours) It beats an ensemble of MAPs, of either prior, in likelihood {where}.",
            _beats(network, prior, "nll", ensembles),
        ),
    ]


_QUICK: dict[str, Any] = {**vars(table.QUICK), "methods": METHODS, "sgd_lr": 0.02}
EXPERIMENT = Experiment(
    title="The headline from SGD's optimum, with two priors: Fashion-MNIST",
    settings={
        "quick": Settings(**_QUICK, channels=(2, 4), units=8, members=2),
        "full": Settings(
            methods=METHODS,
            data="fashion-mnist",
            num_data=20_000,
            test_size=10_000,
            image_size=14,
            augment=(),
            depth=8,
            width=16,
            batch_size=64,
            cycle_epochs=2,
            cycles=12,
            burn_in_cycles=1,
            looks=1,
            lr=5e-4,
            max_speed=5e-3,
            thermostat_rate=1e-4,
            sgd_epochs=16,
            sgd_lr=0.05,
        ),
        "paper": Settings(
            methods=METHODS, data="fashion-mnist", num_data=60_000, image_size=28, augment=(), channels=(32, 64)
        ),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[claim for network in NETWORKS for prior in PRIORS for claim in _claims(network, prior)],
    figure_size=(11, 4.2),
)

"""What both experiments share: SVI, SWA, SWAG and HWA from one trained start, with the same number of steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import langevin as lv
from langevin.data import cifar10, digits, mnist
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation import scores
from langevin.plots.landscape import Landscape, compute_landscape, draw_landscape
from reproductions.judges import Contrasts, Direction, Judge
from reproductions.rows import Cell, Rows

ARMS = ("SVI", "SWA", "SWAG", "HWA between", "HWA total")


@dataclass(frozen=True)
class Settings:
    """The paper's sections on its experiments are empty, so these are our choice for a full run."""

    data: str
    num_data: int
    test_size: int = 10_000
    batch_size: int = 128
    prior_std: float = 0.1
    init_std: float = 0.01
    start_steps: int = 10_000  # of training before averages begin; SVI has them in addition to its own
    steps: int = 5000
    sgd_lr: float = 0.01
    adam_lr: float = 1e-3  # γ₁
    low: float = 0.1  # γ₂/γ₁
    cycles: tuple[int, ...] = (250, 100, 500)  # c: the first for every method, the others for HWA alone
    rank: int = 5
    draws: int = 30
    resolution: int = 11
    landscape_size: int = 2000
    seeds: int = 3


def cells(settings: Settings) -> list[Cell]:
    """Every arm at the first cycle length; HWA at the others, and at a constant learning rate."""
    first, *others = settings.cycles
    plans = [(method, first, "cyclical") for method in ARMS]
    plans += [("HWA total", cycle, "cyclical") for cycle in others] + [("HWA total", first, "constant")]
    plans.append(("SVI, tied mean", first, "cyclical"))
    return [
        {"method": method, "cycle": cycle, "rate": rate, "seed": seed}
        for seed in range(settings.seeds)
        for method, cycle, rate in plans
    ]


def measured(
    make: Callable[[], nn.Module],
    settings: Settings,
    workplace: Path,
    *,
    method: str,
    cycle: int,
    rate: str,
    seed: int,
) -> Cell:
    """Scores on the test set, the training loss, and for HWA the landscape of its trajectory."""
    train, test = read_data(settings)
    posterior = _posterior(make, settings, seed)
    gaussian, tied = method.startswith(("SVI", "HWA")), "tied" in method
    start = _distribution(make, settings, tied, seed) if gaussian else _mode(make, settings, seed)
    lr = settings.adam_lr if gaussian else settings.sgd_lr
    optimizer: Any = torch.optim.Adam if gaussian else partial(torch.optim.SGD, momentum=0.9)
    low = settings.low * lr if rate == "cyclical" else None
    family = lv.MeanField(init_std=settings.init_std, tied_mean=tied)
    approximations: dict[str, lv.approximations.Approximation] = {
        "SVI": family,
        "SVI, tied mean": family,
        "SWA": lv.SWA(cycle=cycle, low=low),
        "SWAG": lv.SWAG(cycle=cycle, low=low, rank=settings.rank),
        "HWA between": lv.HWA(cycle=cycle, low=low, family=family, variance="between"),
        "HWA total": lv.HWA(cycle=cycle, low=low, family=family, variance="total"),
    }
    if (workplace / "manifest.json").exists():
        found = lv.resume(workplace, posterior, train, progress=False)
        assert isinstance(found, lv.Fit)
    else:
        found = lv.fit(
            posterior,
            train,
            approximations[method],
            optimizer=partial(optimizer, lr=lr),
            steps=settings.steps,
            batch_size=settings.batch_size,
            init=start,
            draws=settings.draws,
            seed=seed,
            out=workplace,
            progress=False,
        )
    some = train[0][: settings.test_size], train[1][: settings.test_size]
    row = {f"train_{name}": value for name, value in _scores(found, *some).items()} | _scores(found, *test)
    row["curve"] = [round(value, 4) for value in next(iter(found.snapshots.trace("loss").values()))][-200:]
    if method == "HWA total" and rate == "cyclical" and cycle == settings.cycles[0] and seed == 0:
        few = [tuple(t[: settings.landscape_size] for t in part) for part in (train, test)]
        plane = compute_landscape(found, posterior, *few, resolution=settings.resolution)
        row["landscape"] = {
            name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(plane).items()
        }
    return json.loads(json.dumps(row))  # type: ignore[no-any-return]


def _scores(found: lv.Fit, x: Tensor, y: Tensor) -> Cell:
    prediction = found.predict(x)
    assert isinstance(prediction, ClassPrediction)
    return {
        "accuracy": scores.accuracy(prediction.probs, y),
        "nll": scores.negative_log_likelihood(prediction.probs, y),
        "calibration_error": scores.calibration_error(prediction.probs, y),
    }


def _posterior(make: Callable[[], nn.Module], settings: Settings, seed: int) -> lv.Posterior:
    torch.manual_seed(seed)
    return lv.Posterior(
        make(), lv.likelihoods.Categorical(), lv.priors.Gaussian(settings.prior_std), num_data=settings.num_data
    )


@cache
def _mode(make: Callable[[], nn.Module], settings: Settings, seed: int) -> dict[str, Tensor]:
    """Where SWA and SWAG start: at weights trained by SGD."""
    return lv.find_map(
        _posterior(make, settings, seed),
        read_data(settings)[0],
        method="sgd",
        lr=settings.sgd_lr,
        steps=settings.start_steps,
        batch_size=settings.batch_size,
        seed=seed,
        progress=False,
    )


@cache
def _distribution(make: Callable[[], nn.Module], settings: Settings, tied_mean: bool, seed: int) -> lv.Fit:
    """Where SVI and HWA start: at a mean-field fit, itself started at weights trained by SGD."""
    return lv.fit(
        _posterior(make, settings, seed),
        read_data(settings)[0],
        lv.MeanField(init_std=settings.init_std, tied_mean=tied_mean),
        optimizer=partial(torch.optim.Adam, lr=settings.adam_lr),
        steps=settings.start_steps,
        batch_size=settings.batch_size,
        init=_mode(make, settings, seed),
        seed=seed,
        progress=False,
    )


@cache
def read_data(settings: Settings) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test data, in memory."""
    size, test_size = settings.num_data, settings.test_size
    if settings.data == "digits":
        (x, y), (test_x, test_y) = digits("train").tensors, digits("test").tensors
        x, test_x = (F.interpolate(t[:n], size=28) for t, n in ((x, size), (test_x, test_size)))
        return (x, y[:size]), (test_x, test_y[:test_size])
    if settings.data == "noise":  # synthetic, for tests
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(size + test_size, 3, 32, 32, generator=generator)
        y = torch.randint(10, (len(x),), generator=generator)
        return (x[:size], y[:size]), (x[size:], y[size:])
    source = mnist if settings.data == "mnist" else cifar10
    (x, y), (test_x, test_y) = source("train", size=size).tensors, source("test", size=test_size).tensors
    return (x, y), (test_x, test_y)


def draw(figure: Any, rows: Rows) -> None:
    """Above: scores and training loss of every arm; below: both losses, HWA against cycle length, the landscape."""
    axes = figure.subplots(2, 4)
    main = rows.where(cycle=rows[0]["cycle"], rate="cyclical")
    for panel, (name, label) in zip(
        axes[0], (("accuracy", "accuracy"), ("nll", "NLL"), ("calibration_error", "calibration error")), strict=False
    ):
        points = [main.mean(name, method=m) for m in ARMS]
        panel.errorbar(range(len(points)), [p.mean for p in points], [p.error for p in points], fmt="o")
        panel.set_xticks(range(len(points)), [m.replace(" ", "\n") for m in ARMS], fontsize=7)
        panel.set_title(f"test {label}")
    for number, method in enumerate(ARMS):
        row = main.where(method=method)[0]
        share = [(i + 1) / len(row["curve"]) for i in range(len(row["curve"]))]
        axes[0][3].plot(share, row["curve"], linewidth=1, label=method)
        train, test = (main.mean(name, method=method) for name in ("train_nll", "nll"))
        axes[1][0].errorbar(train.mean, test.mean, test.error, train.error, fmt="o", color=f"C{number}", label=method)
    axes[0][3].set(title="what is minimized, running", xlabel="share of the steps")
    axes[1][0].set(title="test NLL against training NLL")
    for panel in (axes[0][3], axes[1][0]):
        panel.legend(fontsize=6)
    here = rows.where(method="HWA total")
    labels = [f"c = {c}" if r == "cyclical" else f"c = {c},\nconstant" for c, r in _plans(here)]
    found = [here.mean("nll", cycle=c, rate=r) for c, r in _plans(here)]
    axes[1][1].errorbar(range(len(found)), [f.mean for f in found], [f.error for f in found], fmt="o")
    axes[1][1].set_xticks(range(len(found)), labels, fontsize=7)
    axes[1][1].set_title("test NLL of HWA (total)")
    plane = next((row["landscape"] for row in rows if "landscape" in row), None)
    for panel, which in zip(axes[1][2:], ("train", "test"), strict=True):
        if plane is not None:
            shown: dict[str, Any] = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in plane.items()}
            draw_landscape(panel, Landscape(**shown), which)
            panel.legend(fontsize=6)


def _plans(rows: Rows) -> list[tuple[int, str]]:
    return list(dict.fromkeys((row["cycle"], row["rate"]) for row in rows))


def _between_arms(rows: Rows, name: str, one: str, other: str) -> Contrasts:
    key = {"cycle": rows[0]["cycle"], "rate": "cyclical"}
    gap = rows.difference(name, {"method": one, **key}, {"method": other, **key})
    return {f"{one} less {other}": gap}


def _shown_arms(rows: Rows, name: str, other: str, what: str) -> str:
    key = {"cycle": rows[0]["cycle"], "rate": "cyclical"}
    total, between, theirs = (rows.mean(name, method=m, **key) for m in ("HWA total", "HWA between", other))
    return f"{what}: HWA {total} (between: {between}), {other} {theirs}."


def against(name: str, other: str, what: str, direction: Direction = "below") -> Judge:
    """Whether a score of HWA (total) is below (or above) that of another arm."""
    return Judge(
        f"{what}, HWA's (variance: total) less {other}'s, at the first cycle length",
        partial(_between_arms, name=name, one="HWA total", other=other),
        partial(_shown_arms, name=name, other=other, what=what),
        direction,
    )


def _between_cycles(rows: Rows) -> Contrasts:
    here = rows.where(method="HWA total", rate="cyclical")
    return {
        f"log ratio, c = {one} over {other}": here.log_ratio("nll", {"cycle": one}, {"cycle": other})
        for one, other in combinations(here.values("cycle"), 2)
    }


def _shown_cycles(rows: Rows) -> str:
    here = rows.where(method="HWA total", rate="cyclical")
    shown = ", ".join(f"c = {c}: {here.mean('nll', cycle=c)}" for c in here.values("cycle"))
    return f"test NLL of HWA at {shown}."


CYCLE_MATTERS = Judge(
    "log ratio of the test NLLs of HWA at every two cycle lengths (0.05 is 5 %: less is not of utmost importance)",
    _between_cycles,
    _shown_cycles,
    "outside",
    0.05,
)


def _shown_tied(rows: Rows) -> str:
    key = {"cycle": rows[0]["cycle"], "rate": "cyclical"}
    tied, free = (rows.mean("accuracy", method=m, **key) for m in ("SVI, tied mean", "SVI"))
    return f"test accuracy {tied} with one mean per layer, {free} with one per weight."


TIED_MEAN = Judge(
    "test accuracy of SVI with one mean per layer, the paper's choice, less that with one per weight",
    partial(_between_arms, name="accuracy", one="SVI, tied mean", other="SVI"),
    _shown_tied,
    "above",
    -0.02,
)

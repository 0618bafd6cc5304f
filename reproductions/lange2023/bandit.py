"""The mushroom bandit: cumulative regret of Thompson sampling, and of the greedy agent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import langevin as lv
from langevin.bandits import MushroomBandit, play
from langevin.data import mushroom
from langevin.models import MLP
from reproductions.harness import Claim, Experiment
from reproductions.judges import Judge
from reproductions.lange2023.race import LABELS, against_best, best_rates
from reproductions.rows import Cell, Rows

AGENTS = {"sgd": "SGD, ε-greedy", **LABELS}
RATES = {
    "sgd": (0.01, 0.03, 0.1, 0.003),
    "sgld": (0.01, 0.03, 0.06, 0.003),
    "psgld": (3e-4, 1e-3, 3e-3, 1e-4),
    "ksgld": (3e-4, 1e-3, 2e-3, 6e-4),
    "bnpsgld": (2e-4, 4e-4, 8e-4, 1.6e-3),
}


@dataclass(frozen=True)
class Settings:
    """As in Blundell et al. (2015) where the paper's own values are not at hand.

    With noise of 1.0 no agent learnt to eat within a thousand rounds: one reward then tells less than the prior.
    """

    data: str = "mushroom"
    rounds: int = 50_000
    steps_per_round: int = 1
    widths: tuple[int, ...] = (100, 100)
    batch_size: int = 64
    buffer_size: int = 4096
    epsilon: float = 0.05
    reward_scale: float = 10.0
    noise: float = 0.5  # standard deviation, of scaled rewards
    rates: int = 4
    seeds: int = 5


def cells(settings: Settings) -> list[Cell]:
    """Every agent at every learning rate of its grid."""
    return [
        {"method": method, "lr": lr, "seed": seed}
        for seed in range(settings.seeds)
        for method in AGENTS
        for lr in RATES[method][: settings.rates]
    ]


def measure(settings: Settings, workplace: Path, *, method: str, lr: float, seed: int) -> Cell:
    """Cumulative regret at 101 rounds; None if the agent diverged."""
    bandit = _bandit(settings)
    torch.manual_seed(seed)
    model = MLP(bandit.contexts.shape[1] + 2, 1, widths=settings.widths)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(settings.noise), lv.priors.fan_in(model), num_data=1)
    options: dict[str, Any] = {"factor_interval": 10, "inverse_interval": 50} if method == "ksgld" else {}
    try:
        played = play(
            bandit,
            posterior,
            partial(lv.samplers.SAMPLERS[method], lr=lr, **options),
            rounds=settings.rounds,
            steps_per_round=settings.steps_per_round,
            batch_size=settings.batch_size,
            buffer_size=settings.buffer_size,
            epsilon=settings.epsilon if method == "sgd" else 0.0,
            reward_scale=settings.reward_scale,
            seed=seed,
            progress=False,
        )
    except FloatingPointError:
        return {"regret": None, "curve": None, "played": settings.rounds}
    looks = torch.linspace(0, settings.rounds - 1, 101).long()
    return {
        "played": settings.rounds,
        "regret": float(played.cumulative_regret[-1]),
        "rounds": (looks + 1).tolist(),
        "curve": played.cumulative_regret[looks].tolist(),
    }


@cache
def _bandit(settings: Settings) -> MushroomBandit:
    if settings.data == "made":  # synthetic, for tests: the first three features decide
        features = torch.randint(2, (500, 12), generator=torch.Generator().manual_seed(0)).float()
        return MushroomBandit(features, features[:, :3].sum(1) > 1.5)
    return MushroomBandit(*mushroom("all").tensors)


def draw(figure: Any, rows: Rows) -> None:
    """Cumulative regret, mean over seeds, each agent at its best learning rate."""
    axes = figure.subplots()
    for method, lr in best_rates(rows, "regret").items():
        here = rows.where(method=method, lr=lr)
        curves = torch.tensor([row["curve"] for row in here])
        rounds = here[0]["rounds"]
        axes.plot(rounds, curves.mean(0), label=f"{AGENTS[method]} (lr {lr:g})")
        if len(curves) > 1:
            error = curves.std(0) / len(curves) ** 0.5
            axes.fill_between(rounds, curves.mean(0) - error, curves.mean(0) + error, alpha=0.2)
    axes.set(xlabel="rounds", ylabel="cumulative regret")
    axes.legend(fontsize=8)


def _shown_regret(rows: Rows) -> str:
    best = best_rates(rows, "regret")
    shown = ", ".join(f"{AGENTS[m]} {rows.mean('regret', method=m, lr=lr)}" for m, lr in best.items())
    return f"regret of {rows[0]['played']:,} rounds, each at its best rate: {shown}."


EXPERIMENT = Experiment(
    title="The mushroom bandit",
    settings={
        "quick": Settings(data="made", rounds=60, widths=(10,), batch_size=16, rates=1, seeds=1),
        "full": Settings(rounds=2000, steps_per_round=3, widths=(50, 50)),
        "paper": Settings(),
    },
    cells=cells,
    measure=measure,
    draw=draw,
    claims=[
        Claim(
            "BNP-SGLD has less regret than its baselines in the contextual bandit.",
            Judge(
                "cumulative regret, BNP-SGLD's less that of SGLD and of pSGLD, each at the best rate of its grid",
                partial(against_best, measure="regret", baselines=["sgld", "psgld"]),
                _shown_regret,
                seeds=5,
            ),
            "Its inputs are 0 and 1, many of them rarely 1: dividing by such an input's spread makes its weight move "
            "most where there is least to learn from, and bounds the rate for all.",
        )
    ],
    figure_size=(6, 3.8),
)

"""The methods of the leaderboard: at most four settings each, all with the example-gradients of the deep ensemble."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

import langevin as lv
from benchmarks.rival_peers import bde, laplace_torch
from langevin.inference.autopilot.warm_start import default_batch_size

CHAINS = 5  # of samplers
Settings = dict[str, Any]


@dataclass
class Job:
    """One fit of one method: data, budget in example-gradients (0: as many as it takes), and what was spent."""

    make_posterior: Callable[[int], lv.Posterior]
    train: tuple[Tensor, Tensor]
    budget: int
    times: int  # the budget is that of so many deep ensembles
    seed: int
    asked: tuple[Tensor, ...] = ()  # inputs that will be predicted: peers do it in their own process
    spent: int = field(default=0, init=False)

    @property
    def posterior(self) -> lv.Posterior:
        """A new one."""
        return self.make_posterior(len(self.train[0]))

    @property
    def batch_size(self) -> int:
        """That of the deep ensemble."""
        return default_batch_size(math.ceil(0.85 * len(self.train[0])))

    def steps(self, chains: int = 1, per_step: int = 1) -> int:
        """How many the rest of the budget allows."""
        return max(20, (self.budget - self.spent) // (self.batch_size * chains * per_step))

    def ensemble(self, members: int, train: tuple[Tensor, Tensor] | None = None) -> lv.Fit:
        """Networks trained by AdamW with early stopping."""
        train = self.train if train is None else train
        posterior = self.make_posterior(len(train[0]))
        fit = lv.fit(posterior, train, lv.DeepEnsemble(members), seed=self.seed, progress=False)
        self.spent += fit.manifest["example_gradients"]
        return fit

    def fit(self, method: lv.approximations.Approximation, *, lr: float | None = None, **options: Any) -> lv.Fit:
        """The rest of the budget in steps, with a rate that decays to 0 unless the method has a schedule of its own."""
        steps = self.steps(per_step=getattr(method, "draws", 1))
        if lr is not None and "optimizer" not in options:
            options["optimizer"] = partial(torch.optim.Adam, lr=lr, fused=True)
        if options.pop("decays", True):
            options["schedule"] = partial(CosineAnnealingLR, T_max=steps)
        common: dict[str, Any] = {"batch_size": self.batch_size, "seed": self.seed, "progress": False}
        fit = lv.fit(self.posterior, self.train, method, steps=steps, **common, **options)
        self.spent += steps * self.batch_size
        return fit


def one_network(job: Job, settings: Settings) -> Any:
    """AdamW with early stopping: it ends before the budget does."""
    return job.ensemble(1)


def adamw(job: Job, settings: Settings) -> Any:
    """One network with the whole budget, a rate that decays to 0, and no early stopping."""
    adam = partial(torch.optim.AdamW, lr=settings["lr"], weight_decay=0.0, fused=True)  # the prior is in the loss
    return job.fit(lv.SWA(cycle=1), optimizer=adam, burn_in=job.steps() - 1)  # of the last step alone


def temperature_scaling(job: Job, settings: Settings) -> Any:
    """One network on nine tenths of the data, its confidence corrected on the last tenth."""
    order = torch.randperm(len(job.train[0]), generator=torch.Generator().manual_seed(job.seed))
    cut = max(1, len(order) // 10)
    x, y = job.train
    part, held_out = ((x[some], y[some]) for some in (order[cut:], order[:cut]))
    return lv.evaluation.temperature_scaling(job.ensemble(1, part), held_out)


def deep_ensemble(job: Job, settings: Settings) -> Any:
    """Five networks; ten times the budget: fifty."""
    return job.ensemble(5 * job.times)


def mc_dropout(job: Job, settings: Settings) -> Any:
    """Adam at the rate of the deep ensemble's AdamW."""
    return job.fit(lv.MCDropout(settings["rate"]), lr=5e-3)


def swag(job: Job, settings: Settings) -> Any:
    """From one network on."""
    network = job.ensemble(1)
    steps = job.steps()
    sgd = partial(torch.optim.SGD, lr=settings["lr"], momentum=0.9)
    return job.fit(lv.SWAG(cycle=max(1, steps // 60), rank=20), optimizer=sgd, init=network[0], decays=False)


def hwa(job: Job, settings: Settings) -> Any:
    """From one network on."""
    network = job.ensemble(1)
    family = lv.MeanField(init_std=settings["init_std"])
    method = lv.HWA(cycle=max(2, job.steps() // 20), low=settings["lr"] / 10, family=family)
    return job.fit(method, lr=settings["lr"], init=network[0], decays=False)


def mean_field(job: Job, settings: Settings) -> Any:
    """Variational inference with independent weights."""
    return job.fit(lv.MeanField(init_std=settings["init_std"]), lr=settings["lr"])


def laplace(job: Job, settings: Settings) -> Any:
    """At one network, with the prior scale of the largest marginal likelihood; linearized predictions."""
    network = job.ensemble(1)
    job.spent += 2 * len(job.train[0])  # passes for the curvature
    method = lv.Laplace(settings["structure"], layers=settings["layers"], prior_scale="marginal")
    return lv.fit(job.posterior, job.train, method, init=network[0], seed=job.seed, progress=False)


def ivon(job: Job, settings: Settings) -> Any:
    """From a fresh initialization, with one draw per step."""
    return job.fit(lv.IVON(lr=settings["lr"], beta2=settings["beta2"]))


def sampler(kind: type[lv.Sampler], job: Job, settings: Settings) -> Any:
    """Five chains that start at one network; the first quarter of the steps is burn-in."""
    network = job.ensemble(1)
    momentum = kind in (lv.SGHMC, lv.SGNHT, lv.ATMC)
    lr = math.sqrt(settings["lr"] / len(job.train[0])) if momentum else settings["lr"]  # as a rate of SGD
    steps = job.steps(CHAINS)
    run = lv.sample(
        job.posterior,
        job.train,
        kind,
        lr=lr,
        steps=steps,
        burn_in=steps // 4,
        thin=max(1, steps * 3 // 4 // 100),
        chains=CHAINS,
        init=network[0],
        batch_size=job.batch_size,
        mode="vectorised" if kind.stackable else "sequential",
        seed=job.seed,
        progress=False,
    )
    job.spent += steps * CHAINS * job.batch_size
    return run


def autopilot(job: Job, settings: Settings) -> Any:
    """`lv.sample(posterior, train)` with the budget, which is for its warm start too."""
    run = lv.sample(job.posterior, job.train, budget=f"{job.budget} gradients", seed=job.seed, progress=False)
    job.spent += sum(run.manifest["autopilot"]["example_gradients"].values())
    return run


@dataclass(frozen=True)
class Method:
    """A column of the leaderboard."""

    name: str
    fit: Callable[[Job, Settings], Any]
    settings: tuple[Settings, ...] = ({},)


def _pairs(**options: tuple[Any, Any]) -> tuple[Settings, ...]:
    (a, first), (b, second) = options.items()
    return tuple({a: x, b: y} for x in first for y in second)


_RATES = tuple({"lr": lr} for lr in (3e-5, 3e-4, 1e-3, 3e-3))
_NATURAL = tuple({"lr": lr} for lr in (1e-4, 1e-3, 1e-2, 1e-1))
METHODS = {
    method.name: method
    for method in (
        Method("deep ensemble", deep_ensemble),  # first: it sets the budget
        Method("one network", one_network),
        Method("AdamW", adamw, tuple({"lr": lr} for lr in (1e-3, 3e-3, 1e-2, 3e-2))),
        Method("temperature scaling", temperature_scaling),
        Method("MC dropout", mc_dropout, tuple({"rate": rate} for rate in (0.01, 0.05, 0.1, 0.2))),
        Method("SWAG", swag, tuple({"lr": lr} for lr in (1e-5, 1e-4, 1e-3, 1e-2))),
        Method("HWA", hwa, _pairs(lr=(1e-3, 5e-3), init_std=(0.01, 0.05))),
        Method("mean-field", mean_field, _pairs(lr=(1e-3, 5e-3), init_std=(0.01, 0.05))),
        Method(
            "Laplace",
            laplace,
            (
                {"structure": "kfac", "layers": "all"},
                {"structure": "kfac", "layers": "last"},
                {"structure": "diagonal", "layers": "all"},
                {"structure": "full", "layers": "last"},
            ),
        ),
        Method("IVON", ivon, _pairs(lr=(0.03, 0.3), beta2=(0.999, 0.9999))),
        Method("SGLD", partial(sampler, lv.SGLD), _RATES),
        Method("pSGLD", partial(sampler, lv.pSGLD), tuple({"lr": lr} for lr in (1e-6, 1e-5, 1e-4, 1e-3))),
        Method("KSGLD", partial(sampler, lv.KSGLD), _NATURAL),
        Method("BNPSGLD", partial(sampler, lv.BNPSGLD), _RATES),
        Method("SGHMC", partial(sampler, lv.SGHMC), _RATES),
        Method("SGNHT", partial(sampler, lv.SGNHT), _RATES),
        Method("ATMC", partial(sampler, lv.ATMC), _RATES),
        Method("bde", bde, _pairs(lr=(5e-3, 2e-2), desired_energy_var_end=(0.1, 5e-4))),
        Method(
            "laplace-torch",
            laplace_torch,
            (
                {"structure": "kron", "layers": "all"},
                {"structure": "kron", "layers": "last_layer"},
                {"structure": "diag", "layers": "all"},
                {"structure": "full", "layers": "last_layer"},
            ),
        ),
        Method("autopilot", autopilot),
    )
}

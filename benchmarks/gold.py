"""Every registered sampler against a gold standard, on two real posteriors.

- Bayesian logistic regression on scikit-learn's breast cancer data (569 × 30, standardized, N(0, 1) prior), against
  NUTS: bias of the posterior means, in posterior standard deviations; ratio of the standard deviations; effective
  samples per thousand gradients.
- An MLP 64-12-10 (910 weights, tanh, N(0, 1) prior) on 400 digits, against long full-batch HMC: agreement of the
  predicted classes and total variation of the predicted probabilities, as in the NeurIPS 2021 competition on
  approximate inference.

The learning rate of a sampler that injects noise is what `find_lr` finds at that batch size. One that injects none gets
the rate at which its gradient-noise temperature is 1, or a quarter of its stability limit if that is less. SNGD's batch
size follows from its lr at T = 1. A sampler that `CASES` does not list is run with the defaults of `Case`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import langevin as lv
from langevin.core.statistics import effective_sample_size
from langevin.data import digits
from langevin.diagnostics.curvature import largest_curvature
from langevin.ensembles.prediction import ClassPrediction
from langevin.inference.environment import environment
from langevin.inference.find_lr import find_lr
from langevin.models import MLP, LogisticRegression
from langevin.samplers import SAMPLERS

Pair = tuple[Tensor, Tensor]
Weights = dict[str, Tensor]
_START_BATCH = 64  # of the optimization before sampling


@dataclass(frozen=True)
class Case:
    """How a sampler is run on a posterior."""

    options: dict[str, Any] = field(default_factory=dict)
    lr: float | None = None  # None: searched for
    steps: int = 20_000
    batch_size: int = 64
    chains: int = 4
    note: str = ""
    search_steps: int = 4000  # of each learning rate that is tried


# By posterior and sampler, in the order of the tables; None leaves a sampler out. One that is not listed follows with
# the defaults of `Case`, so a new sampler gets its rows by being registered.
CASES: dict[str, dict[str, Case | None]] = {
    "logistic": {
        "sgld": Case(),
        "psgld": Case(),
        "ksgld": Case(),
        "bnpsgld": Case(),
        "nld": Case({"target": "posterior", "batch_size": 569}, steps=4000, note='target="posterior"'),
        "sghmc": Case(),
        "sgnht": Case(),
        "atmc": Case(),
        "sngd": Case(
            {"batch_size": 569},
            lr=0.1,
            steps=10_000,
            batch_size=lv.samplers.batch_size_for(temperature=1.0, lr=0.1, num_data=569),
        ),
        "fsgd": Case(),
        "mclmc": Case(steps=4000),
        "hmc": Case(steps=1000),
        "sgd": None,  # the baseline converges to a point
    },
    "network": {
        "sgld": Case(),
        "psgld": Case(),
        "ksgld": Case(),
        "bnpsgld": Case(),
        "sghmc": Case(),
        "sgnht": Case(),
        "atmc": Case(),
        "fsgd": Case(),
        "mclmc": Case(steps=4000),
        "hmc": Case(steps=1000),
        "nld": None,  # the drift Γ of target="posterior" is for 300 weights at most
        "sngd": None,  # a full Fisher of 910 weights in every step takes too long
        "sgd": None,
    },
}


def cases(posterior: str) -> dict[str, Case]:
    """The cases of every registered sampler, those that are listed first."""
    listed = CASES[posterior]
    names = [*(name for name in listed if name in SAMPLERS), *(name for name in SAMPLERS if name not in listed)]
    chosen = {name: listed.get(name, Case()) for name in names}
    return {name: case for name, case in chosen.items() if case is not None}


@dataclass(frozen=True)
class Measured:
    """What was measured; the fields that do not apply to a posterior are None."""

    method: str
    note: str
    lr: float
    batch_size: int
    gradients: int
    temperature: float | None
    temperature_error: float | None
    seconds: float
    bias: float | None = None
    bias_expected: float | None = None  # of as many effective samples without any bias
    std_ratio: float | None = None
    std_ratio_error: float | None = None
    worst_std_ratio: float | None = None
    ess_per_1000_gradients: float | None = None
    agreement: float | None = None
    total_variation: float | None = None
    total_variation_error: float | None = None  # over the test inputs


def breast_cancer() -> tuple[lv.Posterior, Pair]:
    """The logistic regression and its data."""
    import sklearn.datasets

    x, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    torch.manual_seed(0)
    model = LogisticRegression(30)
    posterior = lv.Posterior(model, lv.likelihoods.Bernoulli(), lv.priors.Gaussian(1.0), num_data=len(y))
    return posterior, (torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def digits_network() -> tuple[lv.Posterior, Pair]:
    """The network and its data."""
    x, y = digits("train").tensors
    torch.manual_seed(0)
    model = MLP(64, 10, widths=(12,), activation="tanh")
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=400)
    return posterior, (x[:400], y[:400])


def measure(
    name: str,
    case: Case,
    make: Callable[[], tuple[lv.Posterior, Pair]],
    compare: Callable[[lv.Run, int], dict[str, float]],
) -> Measured:
    """Run one case and compare it with its gold standard."""
    posterior, train = make()
    kind = SAMPLERS[name]
    start = lv.find_map(posterior, train, method="sgd", lr=0.05, steps=2000, batch_size=_START_BATCH, progress=False)
    rate = Rate(case.lr) if case.lr is not None else search_rate(name, case, posterior, train, start)
    batch_size = posterior.num_data if kind.full_batch else case.batch_size
    chosen: dict[str, Any] = ({} if rate.lr is None else {"lr": rate.lr}) | dict(case.options)
    began = time.perf_counter()
    run = lv.sample(
        posterior,
        train,
        partial(kind, **chosen),
        batch_size=batch_size,
        steps=case.steps,
        thin=10,
        chains=case.chains,
        init=start,
        seed=1,
        progress=False,
    )
    seconds = time.perf_counter() - began
    temperature = run.temperature() if kind.injects_noise else None
    gradients = case.steps * case.chains * kind.gradients_per_step
    notes = [case.note, "" if kind.injects_noise else "no temperature", rate.note]
    return Measured(
        method=name,
        note=", ".join(note for note in notes if note),
        lr=rate.lr or float(run.samples.records[-1].stats["lr"]),
        batch_size=batch_size,
        gradients=gradients,
        temperature=temperature and temperature.mean,
        temperature_error=temperature and temperature.error,
        seconds=seconds,
        **compare(run, gradients),
    )


class Rate(NamedTuple):
    """A learning rate, and what the tables have to say about it."""

    lr: float | None  # None: adapted by the sampler
    note: str = ""


def search_rate(name: str, case: Case, posterior: lv.Posterior, train: Pair, start: Weights) -> Rate:
    """The rate by the rules at the top of this module; a tenth of the stability limit where they give none."""
    if SAMPLERS[name].full_batch:
        return Rate(None, "lr: adapted in burn-in")
    sampler = partial(SAMPLERS[name], **case.options)
    if SAMPLERS[name].injects_noise:
        options: dict[str, Any] = {"batch_size": case.batch_size, "steps": case.search_steps, "progress": False}
        try:
            return Rate(find_lr(posterior, train, sampler, init=start, **options).lr)
        except ValueError:
            return Rate(_stability_limit(sampler, posterior, train, start) / 10, "lr: a tenth of its stability limit")
    limit = _stability_limit(sampler, posterior, train, start)
    at_one = _rate_of_unit_temperature(sampler, posterior, train, start, case.batch_size)
    return Rate(limit / 10, "lr: a tenth of its stability limit") if at_one is None else Rate(min(at_one, limit / 4))


def against_nuts(run: lv.Run, gradients: int, reference: dict[str, Any]) -> dict[str, float]:
    """Means, standard deviations and effective samples of the 31 weights."""
    exact_mean, exact_std = (torch.tensor(reference[name], dtype=torch.float64) for name in ("mean", "std"))
    chains = torch.stack([torch.stack([_flat(s) for s in run.chain(c)]) for c in run.chains])  # chains, draws, weights
    pooled = chains.flatten(0, 1).double()
    ratio = pooled.std(0) / exact_std
    ess = torch.stack([effective_sample_size(chain) for chain in chains]).sum(0)
    return {
        "bias": float(((pooled.mean(0) - exact_mean) / exact_std).square().mean().sqrt()),
        "bias_expected": float((1 / ess).mean().sqrt()),
        "std_ratio": float(ratio.mean()),
        # of one weight's ratio: that of the mean is smaller, by how much depends on the unknown correlation of weights
        "std_ratio_error": float((1 / (2 * ess)).mean().sqrt()),
        "worst_std_ratio": float(ratio[(ratio.log().abs()).argmax()]),
        "ess_per_1000_gradients": float(ess.median()) / gradients * 1000,
    }


def against_hmc(run: lv.Run, gradients: int, reference: dict[str, Any]) -> dict[str, float]:
    """Predictions on the test digits."""
    exact = torch.tensor(reference["probs"])
    prediction = run.predict(digits("test").tensors[0])
    assert isinstance(prediction, ClassPrediction)
    distance = (prediction.probs - exact).abs().sum(1) / 2
    return {
        "agreement": float((prediction.labels == exact.argmax(1)).double().mean()),
        "total_variation": float(distance.mean()),
        "total_variation_error": float(distance.std() / len(distance) ** 0.5),
    }


def run_gold(out: Path, references: Path, say: Callable[[str], None] = print) -> None:
    """Run every case that has no row in `out/results.json` yet; write it and the tables after each."""
    torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it saves
    nuts = json.loads((references / "breast_cancer_nuts.json").read_text())
    hmc = json.loads((references / "digits_mlp_hmc.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"logistic": [], "network": []}
    results["environment"] = environment(torch.device("cpu"))
    results["hmc"] = {key: hmc[key] for key in ("total_variation_between_halves", "agreement_between_halves")}
    posteriors: dict[str, tuple[Any, Any]] = {
        "logistic": (breast_cancer, partial(against_nuts, reference=nuts)),
        "network": (digits_network, partial(against_hmc, reference=hmc)),
    }
    for part, (make, compare) in posteriors.items():
        order = list(cases(part))
        for name, case in cases(part).items():
            if any(row["method"] == name for row in results[part]):
                continue
            try:
                row = asdict(measure(name, case, make, compare))
            except ValueError as error:
                say(f"{part} {name}: left out: {error}")
                continue
            results[part].append(row)
            say(f"{part} {name}: " + ", ".join(f"{k}={v:.3g}" for k, v in row.items() if isinstance(v, float)))
            results[part].sort(key=lambda row, order=order: _place(order, row["method"]))
            path.write_text(json.dumps(results, indent=1) + "\n")
            (out / "tables.md").write_text(tables(results))


def _place(order: list[str], name: str) -> int:
    """The position of a row; the end, if its sampler is not run any more."""
    return order.index(name) if name in order else len(order)


def tables(results: dict[str, Any]) -> str:
    """Both tables, for a page."""
    lines = [
        "| sampler | lr | batch | T measured | bias of means (expected of none) | std ratio: mean ± error, worst | "
        "ESS per 1,000 gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["logistic"]:
        lines.append(
            f"| {_name(row)} | {row['lr']:.2g} | {row['batch_size']} | {_temperature(row)} | "
            f"{row['bias']:.3f}{_shown(row, 'bias_expected', ' ({:.3f})')} | "
            f"{row['std_ratio']:.2f}{_shown(row, 'std_ratio_error', ' ± {:.2f}')}, "
            f"{row['worst_std_ratio']:.2f} | {row['ess_per_1000_gradients']:.1f} |"
        )
    lines += [
        "",
        "| sampler | lr | batch | gradients | T measured | agreement | total variation |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["network"]:
        lines.append(
            f"| {_name(row)} | {row['lr']:.2g} | {row['batch_size']} | {row['gradients']:,} | {_temperature(row)} | "
            f"{row['agreement']:.3f} | "
            f"{row['total_variation']:.3f}{_shown(row, 'total_variation_error', ' ± {:.3f}')} |"
        )
    if "hmc" in results:
        halves = results["hmc"]
        lines.append(
            f"| HMC, one half against the other | | | | | {halves['agreement_between_halves']:.3f} | "
            f"{halves['total_variation_between_halves']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _name(row: dict[str, Any]) -> str:
    name = SAMPLERS[row["method"]].__name__ if row["method"] in SAMPLERS else row["method"]
    return f"{name} ({row['note']})" if row["note"] else name


def _temperature(row: dict[str, Any]) -> str:
    return "" if row["temperature"] is None else f"{row['temperature']:.2f} ± {row['temperature_error']:.2f}"


def _shown(row: dict[str, Any], name: str, how: str) -> str:
    """A number in that format; nothing for rows that were measured before standard errors were."""
    return how.format(row[name]) if row.get(name) is not None else ""


def _flat(weights: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def _stability_limit(make: Callable[..., lv.Sampler], posterior: lv.Posterior, train: Pair, start: Weights) -> float:
    params = _at_start(posterior, start)
    probe = make(params, lr=1.0, num_data=posterior.num_data, seed=0, chain=0)
    return probe.stability_limit(largest_curvature(posterior, *train))


def _rate_of_unit_temperature(
    make: Callable[..., lv.Sampler], posterior: lv.Posterior, train: Pair, start: Weights, batch: int
) -> float | None:
    """The lr at which the gradient-noise temperature at the optimum, linear in lr, is 1; None if it is not known."""
    params = _at_start(posterior, start)
    gradients = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        indices = torch.randperm(posterior.num_data, generator=generator)[:batch]
        grads = torch.autograd.grad(posterior.loss(train[0][indices], train[1][indices]), params)
        gradients.append(torch.cat([g.flatten() for g in grads]))
    probe = make(params, lr=1.0, num_data=posterior.num_data, seed=0, chain=0)
    temperature = probe.gradient_noise_temperature(max(float(torch.stack(gradients).var(0).mean()), 1e-30))
    return 1.0 / temperature if math.isfinite(temperature) and temperature > 0 else None


@torch.no_grad()
def _at_start(posterior: lv.Posterior, start: Weights) -> list[Tensor]:
    """The parameters, set to these weights."""
    params = posterior.trainable_parameters()
    for name, p in params.items():
        p.copy_(start[name])
    return list(params.values())

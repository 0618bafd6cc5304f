"""Every sampler against a gold standard, on two real posteriors.

- Bayesian logistic regression on scikit-learn's breast cancer data (569 × 30, standardized, N(0, 1) prior), against
  NUTS: bias of the posterior means, in posterior standard deviations; ratio of the standard deviations; effective
  samples per thousand gradients.
- An MLP 64-12-10 (910 weights, tanh, N(0, 1) prior) on 400 digits, against long full-batch HMC: agreement of the
  predicted classes and total variation of the predicted probabilities, as in the NeurIPS 2021 competition on
  approximate inference.

The learning rate of every sampler with a temperature is what `find_lr` finds at that batch size; SNGD's batch size
follows from its lr at T = 1; FSGD's rate is the one at which its mini-batch noise amounts to T = 1, or a quarter of
its stability limit if that is less.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin import data
from langevin.core.likelihoods import Bernoulli, Categorical
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian
from langevin.core.statistics import effective_sample_size
from langevin.diagnostics.curvature import largest_curvature
from langevin.ensembles.predict import ClassPrediction
from langevin.ensembles.run import Run
from langevin.inference.environment import environment
from langevin.inference.find_lr import find_lr
from langevin.inference.find_map import find_map
from langevin.inference.sample import sample
from langevin.models import MLP, LogisticRegression
from langevin.samplers import METHODS, batch_size_for

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """How one method is run on one posterior."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    lr: float | None = None  # None: by find_lr
    steps: int = 20_000
    batch_size: int = 64
    chains: int = 4
    note: str = ""


LOGISTIC = [
    Case("sgld"),
    Case("psgld"),
    Case("ksgld"),
    Case("bnpsgld"),
    Case("nld", {"target": "posterior", "batch_size": 569}, steps=4000, note='target="posterior"'),
    Case("sghmc"),
    Case("sgnht"),
    Case("atmc"),
    Case("sngd", {"batch_size": 569}, lr=0.1, steps=10_000, note="no temperature"),
    Case("fsgd", note="no temperature"),
]
NETWORK = [
    Case("sgld", steps=20_000),
    Case("psgld", steps=20_000),
    Case("ksgld", steps=20_000),
    Case("bnpsgld", steps=20_000),
    Case("sghmc", steps=20_000),
    Case("sgnht", steps=20_000),
    Case("atmc", steps=20_000),
    Case("fsgd", steps=20_000, note="no temperature"),
]


@dataclass(frozen=True)
class Measured:
    """What came out; the fields that a posterior does not have are None."""

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


def breast_cancer() -> tuple[Posterior, Pair]:
    """The logistic regression and its data."""
    import sklearn.datasets

    x, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    torch.manual_seed(0)
    posterior = Posterior(LogisticRegression(30), Bernoulli(), Gaussian(1.0), num_data=len(y))
    return posterior, (torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def digits_network() -> tuple[Posterior, Pair]:
    """The network and its data."""
    x, y = data.digits("train").tensors
    torch.manual_seed(0)
    posterior = Posterior(MLP(64, 10, widths=(12,), activation="tanh"), Categorical(), Gaussian(1.0), num_data=400)
    return posterior, (x[:400], y[:400])


def measure(
    case: Case,
    make: Callable[[], tuple[Posterior, Pair]],
    compare: Callable[[Run, int], dict[str, float]],
) -> Measured:
    """Run one case and compare it with its gold standard."""
    posterior, train = make()
    start = find_map(posterior, train, method="sgd", lr=0.05, steps=2000, batch_size=case.batch_size, progress=False)
    sampler = partial(METHODS[case.method].sampler, **case.options)
    batch_size, lr = case.batch_size, case.lr
    if case.method == "sngd":
        assert lr is not None
        batch_size = batch_size_for(temperature=1.0, lr=lr, num_data=posterior.num_data)
    elif case.method == "fsgd":
        lr = _rate_of_unit_heat(posterior, train, start, batch_size)
    elif lr is None:
        found = find_lr(posterior, train, sampler, batch_size=batch_size, steps=4000, init=start, progress=False)
        lr = found.lr
    began = time.perf_counter()
    run = sample(
        posterior,
        train,
        partial(sampler, lr=lr),
        batch_size=batch_size,
        steps=case.steps,
        thin=10,
        chains=case.chains,
        init=start,
        seed=1,
        progress=False,
    )
    seconds = time.perf_counter() - began
    heat = run.temperature() if METHODS[case.method].sampler.injects_noise else None
    return Measured(
        method=case.method,
        note=case.note,
        lr=lr,
        batch_size=batch_size,
        gradients=case.steps * case.chains,
        temperature=heat and heat.mean,
        temperature_error=heat and heat.error,
        seconds=seconds,
        **compare(run, case.steps * case.chains),
    )


def against_nuts(run: Run, gradients: int, reference: dict[str, Any]) -> dict[str, float]:
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
        # of one weight's ratio; that of their mean is less, but the weights are correlated and how much is not known
        "std_ratio_error": float((1 / (2 * ess)).mean().sqrt()),
        "worst_std_ratio": float(ratio[(ratio.log().abs()).argmax()]),
        "ess_per_1000_gradients": float(ess.median()) / gradients * 1000,
    }


def against_hmc(run: Run, gradients: int, reference: dict[str, Any]) -> dict[str, float]:
    """Predictions on the test digits."""
    exact = torch.tensor(reference["probs"])
    prediction = run.predict(data.digits("test").tensors[0])
    assert isinstance(prediction, ClassPrediction)
    distance = (prediction.probs - exact).abs().sum(1) / 2
    return {
        "agreement": float((prediction.labels == exact.argmax(1)).double().mean()),
        "total_variation": float(distance.mean()),
        "total_variation_error": float(distance.std() / len(distance) ** 0.5),
    }


def run_gold(out: Path, references: Path, say: Callable[[str], None] = print) -> None:
    """Run all cases that are not in `out/results.json` yet; write it and the tables after each."""
    torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it brings
    nuts = json.loads((references / "breast_cancer_nuts.json").read_text())
    hmc = json.loads((references / "digits_mlp_hmc.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"logistic": [], "network": []}
    results["environment"] = environment(torch.device("cpu"))
    results["hmc"] = {key: hmc[key] for key in ("total_variation_between_halves", "agreement_between_halves")}
    plan: list[tuple[str, Case, Any, Any]] = [
        *(("logistic", case, breast_cancer, partial(against_nuts, reference=nuts)) for case in LOGISTIC),
        *(("network", case, digits_network, partial(against_hmc, reference=hmc)) for case in NETWORK),
    ]
    for part, case, make, compare in plan:
        if any(row["method"] == case.method and row["note"] == case.note for row in results[part]):
            continue
        row = asdict(measure(case, make, compare))
        results[part].append(row)
        say(f"{part} {case.method}: " + ", ".join(f"{k}={v:.3g}" for k, v in row.items() if isinstance(v, float)))
        order = [case.method for kind, case, *_ in plan if kind == part]
        results[part].sort(key=lambda row, order=order: order.index(row["method"]))
        path.write_text(json.dumps(results, indent=1) + "\n")
        (out / "tables.md").write_text(tables(results))


def tables(results: dict[str, Any]) -> str:
    """Both tables, for a page."""
    lines = [
        "| sampler | lr | batch | T measured | bias of means (expected of none) | std ratio: mean ± error, worst | "
        "ESS per 1,000 gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["logistic"]:
        lines.append(
            f"| {_name(row)} | {row['lr']:.2g} | {row['batch_size']} | {_heat(row)} | "
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
            f"| {_name(row)} | {row['lr']:.2g} | {row['batch_size']} | {row['gradients']:,} | {_heat(row)} | "
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
    name = METHODS[row["method"]].sampler.__name__
    return f"{name} ({row['note']})" if row["note"] else name


def _heat(row: dict[str, Any]) -> str:
    return "" if row["temperature"] is None else f"{row['temperature']:.2f} ± {row['temperature_error']:.2f}"


def _shown(row: dict[str, Any], name: str, how: str) -> str:
    """A number in that form; nothing for a row that was measured before there were errors."""
    return how.format(row[name]) if row.get(name) is not None else ""


def _flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def _rate_of_unit_heat(
    posterior: Posterior, train: tuple[Tensor, Tensor], start: dict[str, Tensor], batch: int
) -> float:
    """The lr at which the variance of mini-batch gradients at the optimum amounts to T = 1, if that is stable."""
    gradients = []
    params = posterior.trainable_parameters()
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(start[name])
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        indices = torch.randperm(posterior.num_data, generator=generator)[:batch]
        grads = torch.autograd.grad(posterior.loss(train[0][indices], train[1][indices]), list(params.values()))
        gradients.append(torch.cat([g.flatten() for g in grads]))
    probe = METHODS["fsgd"].sampler(list(params.values()), lr=1.0, num_data=posterior.num_data, seed=0, chain=0)
    unit_heat = 1.0 / probe.gradient_noise_temperature(max(float(torch.stack(gradients).var(0).mean()), 1e-30))
    return min(unit_heat, probe.stability_limit(largest_curvature(posterior, *train)) / 4)

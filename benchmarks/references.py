"""The autopilot beside long HMC on three small networks: are its predictions those of the posterior?

The networks and the rule were written down before the first run. HMC is the one of `benchmarks/hmc.py`, which shares no
code with the library: 16 chains from random starts, in double precision, until R̂ of the predictions is at most 1.02. On
the test inputs, m and s are mean and standard deviation of the network's output under HMC: of the mean function of a
regression, of the logit of a classifier.

    mean     |mean − m|/s              bar 0.1, 90th percentile over the test inputs
    spread   |standard deviation/s − 1|    bar 0.1, 90th percentile over the test inputs
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import langevin as lv
from benchmarks.hmc import hmc
from langevin.diagnostics.rank_statistics import rank_statistics
from langevin.inference.environment import environment

CHAINS, ADAPT, LEAPFROGS = 16, 1000, 80
ITERATIONS, LONGEST = 1000, 16_000  # HMC's length is doubled from the first to the second until R̂ is small
RHAT, BAR = 1.02, 0.1


class Problem(NamedTuple):
    """A network of one hidden layer of tanh units with one output, N(0, 1) priors, and data."""

    hidden: int
    train: tuple[Tensor, Tensor]
    test: Tensor
    noise: float | None  # of a regression, known; None for two classes

    def model(self) -> nn.Sequential:
        """The network."""
        return nn.Sequential(nn.Linear(self.test.shape[1], self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def posterior(self) -> lv.Posterior:
        """As a user writes it."""
        likelihood = lv.likelihoods.Bernoulli() if self.noise is None else lv.likelihoods.Gaussian(self.noise)
        return lv.Posterior(self.model(), likelihood, lv.priors.Gaussian(1.0), num_data=len(self.train[0]))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """(chains, n) of weights (chains, d), in the order of the model's parameters."""
        width, inputs = self.hidden, x.shape[1]
        w1, b1, w2, b2 = torch.split(theta, [width * inputs, width, width, 1], 1)
        hidden = torch.einsum("chi,ni->cnh", w1.reshape(-1, width, inputs), x) + b1[:, None]
        return torch.einsum("cnh,ch->cn", hidden.tanh(), w2) + b2

    def energy(self, theta: Tensor) -> Tensor:
        """U of each chain, but for constants."""
        x, y = (t.double() for t in self.train)
        outputs, prior = self.outputs(theta, x), theta.square().sum(1) / 2
        if self.noise is not None:
            return (outputs - y[:, 0]).square().sum(1) / (2 * self.noise**2) + prior
        signed = (1 - 2 * y[:, 0]) * outputs
        return nn.functional.softplus(signed).sum(1) + prior


def problems() -> dict[str, Callable[[], Problem]]:
    """A curve, a table of numbers, and two classes."""
    return {
        "curve, 1-8-1": _curve,
        "yacht, 6-10-1": _yacht,
        "breast cancer, 30-5-1": _breast_cancer,
    }


def _curve() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 1, generator=generator) - 2
    y = torch.sin(2 * x) + 0.2 * torch.randn(60, 1, generator=generator)
    return Problem(8, (x, y), torch.linspace(-3, 3, 121)[:, None], 0.2)


def _yacht() -> Problem:
    train, test = (lv.data.uci("yacht", part, fold=0).tensors for part in ("train", "test"))
    return Problem(10, (train[0], train[1]), test[0], 0.1)


def _breast_cancer() -> Problem:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    inputs, labels = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y, dtype=torch.float32)[order, None]
    mean, std = inputs[:400].mean(0), inputs[:400].std(0)
    inputs = (inputs - mean) / std
    return Problem(5, (inputs[:400], labels[:400]), inputs[400:], None)


def reference(problem: Problem, say: Callable[[str], None]) -> dict[str, Any]:
    """HMC's outputs on the test inputs, (chains, draws, n), and their R̂."""
    size = sum(p.numel() for p in problem.model().parameters())
    start = 0.5 * torch.randn(CHAINS, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    iterations = ITERATIONS
    while True:
        began = time.perf_counter()
        found, _ = hmc(problem.energy, start, adapt=ADAPT, iterations=iterations, leapfrogs=LEAPFROGS)
        positions = found[:: max(1, iterations // 250)]
        outputs = torch.stack([problem.outputs(each, problem.test.double()) for each in positions], 1)
        worst = float(rank_statistics(outputs.numpy())[2].max())
        say(f"HMC, {iterations} iterations: R̂ {worst:.3f}, {time.perf_counter() - began:.0f} s")
        if worst <= RHAT or iterations >= LONGEST:
            return {"outputs": outputs, "rhat": worst, "iterations": iterations}
        iterations *= 2


def measured(problem: Problem, say: Callable[[str], None]) -> dict[str, Any]:
    """One row."""
    known = reference(problem, say)
    mean, spread = (f(known["outputs"].reshape(-1, len(problem.test))) for f in (_mean, _std))
    torch.manual_seed(0)
    began = time.perf_counter()
    run = lv.sample(problem.posterior(), problem.train, progress=False)
    seconds = time.perf_counter() - began
    names = list(problem.posterior().trainable_parameters())
    theta = torch.stack([torch.cat([sample[name].flatten() for name in names]) for sample in run]).double()
    outputs = problem.outputs(theta, problem.test.double())
    off = (_mean(outputs) - mean).abs() / spread
    ratio = _std(outputs) / spread
    return {
        "rhat": known["rhat"],
        "iterations": known["iterations"],
        "mean": float(torch.quantile(off, 0.9)),
        "spread": float(torch.quantile((ratio - 1).abs(), 0.9)),
        "ratio": float(ratio.median()),
        "samples": len(run),
        "seconds": seconds,
        "verdict": str(run.verdict()),
        "tuning": [str(decision) for decision in run.tuning],
    }


def run_references(out: Path, say: Callable[[str], None] = print) -> None:
    """Measure what is missing; write `out/references.json` and `out/references.md`."""
    torch.set_num_threads(1)
    file = out / "references.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name, make in problems().items():
        if name not in rows:
            rows[name] = measured(make(), say) | {"environment": environment(torch.device("cpu"))}
            out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows, indent=1) + "\n")
            say(f"{name}: {rows[name]}")
    (out / "references.md").write_text(table(rows))


def table(rows: dict[str, Any]) -> str:
    """The rows, and whether they meet the bars."""
    lines = [
        "| network | HMC: R̂ | iterations of 16 chains | mean, off by (in s) | spread, off by | "
        "median ratio of spreads | within 0.1 | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        met = "unknown: HMC has not converged" if row["rhat"] > RHAT else _met(row["mean"], row["spread"])
        lines.append(
            f"| {name} | {row['rhat']:.3f} | {row['iterations']:,} | {row['mean']:.3f} | {row['spread']:.3f} | "
            f"{row['ratio']:.3f} | {met} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _met(mean: float, spread: float) -> str:
    good = [math.isfinite(value) and value <= BAR for value in (mean, spread)]
    return "yes" if all(good) else "spread only" if good[1] else "mean only" if good[0] else "no"


def _mean(outputs: Tensor) -> Tensor:
    return outputs.mean(0)


def _std(outputs: Tensor) -> Tensor:
    return outputs.std(0)

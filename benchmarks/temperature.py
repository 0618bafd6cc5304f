"""Both thermometers on targets whose temperatures are known.

- Conjugate linear regression at B = N/20 and a large step: one run of many chains is taken for many runs of a few; the
  truth is the spread of all samples in the eigendirections of the posterior.
- Two weights at different temperatures, 64 chains from exact draws that hardly move.
- A network of 81 weights on the yacht data, started at draws of Hamiltonian Monte Carlo: SGLD at a small and at a large
  step, NLD at a small and at a large step. The truth of the small steps is 1; of the energy, that of HMC.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import langevin as lv
from benchmarks.hmc import hmc
from langevin.core.parameters import load_tensors
from langevin.core.statistics import Estimate, mean_and_error
from langevin.diagnostics.curvature import largest_curvature
from langevin.diagnostics.temperature import (
    Ratio,
    Windows,
    leave_one_out,
    over_tensors,
    ratio_of_means,
    virial_temperature,
)
from langevin.inference.environment import environment

NOISE = 0.5
STIFFEST = "along the stiffest direction"
draw = partial(lv.sample, progress=False)


def linear(n: int = 400, d: int = 5) -> tuple[lv.Posterior, tuple[Tensor, Tensor], Tensor, Tensor]:
    """Regression on features of different sizes: posterior, data, and the posterior's precision and mean."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator) @ torch.diag(torch.logspace(0, -0.5, d))
    y = x.sum(1, keepdim=True) + NOISE * torch.randn(n, 1, generator=generator)
    model = nn.Linear(d, 1, bias=False)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(NOISE), lv.priors.Gaussian(1.0), num_data=n)
    precision = (x.T @ x / NOISE**2 + torch.eye(d)).double()
    return posterior, (x, y), precision, torch.linalg.solve(precision, (x.T @ y / NOISE**2).double())[:, 0]


class Replicates:
    """One run of many chains on `linear`, taken for many runs of a few; truths by the spread of all samples."""

    def __init__(self, chains: int, steps: int, probe: float, batch_size: int = 20, seed: int = 0) -> None:
        posterior, data, precision, mean = linear()
        values, vectors = torch.linalg.eigh(precision)

        def exact(chain: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(chain + chains * seed)
            eta = torch.randn(len(mean), generator=generator, dtype=torch.float64)
            return {"weight": (mean + vectors @ (eta / values.sqrt()))[None].float()}

        self.run = draw(
            posterior,
            data,
            lv.SGLD,
            lr=0.1 * len(data[0]) / float(values[-1]),
            batch_size=batch_size,
            steps=steps,
            chains=chains,
            probe=probe,
            init=exact,
            mode="vectorised",
            seed=seed,
        )
        draws = torch.stack([torch.stack([s["weight"][0].double() for s in self.run.chain(c)]) for c in range(chains)])
        along = ((draws - mean) @ vectors).square().mean((0, 1)) * values  # T in every eigendirection
        self.truth = {
            "virial": float(along.mean()),
            "gradient": float((along * values).sum() / values.sum()),
            "stiffest": float(along[-1]),
        }
        self.windows = windows_of(self.run)
        self.traces = {name: self.run.trace(name) for name in self.run.traces}

    def readings(self, chains: int) -> dict[str, list[Estimate]]:
        """Estimates of each thermometer by so many chains; of the virial also without the widening of its error."""
        found: dict[str, list[Estimate]] = {"virial": [], "virial, not widened": [], "gradient": [], "stiffest": []}
        names = {"gradient": "{}/weight", "stiffest": f"{{}} {STIFFEST}"}
        for first in range(0, len(self.windows) - chains + 1, chains):
            some = range(first, first + chains)
            if chains == 1:
                series = [self.traces["temperature"][first]]
            else:
                about = leave_one_out({c: self.windows[c] for c in some}, self.run.manifest["num_data"])
                series = list(about["weight"].values())
            found["virial"].append(virial_temperature(*series))
            found["virial, not widened"].append(mean_and_error(*series))
            for kind, name in names.items():
                above, below = ({c: self.traces[name.format(k)][c] for c in some} for k in ("gradient", "curvature"))
                weights = self.run.manifest["tensors"]["weight"]["shape"][1] if kind == "gradient" else 1
                found[kind].append(ratio_of_means(Ratio(above, below, weights)))
        return found

    def within(self, readings: Mapping[str, list[Estimate]], kind: str) -> tuple[float, int]:
        """The share of known readings within two of their errors of the truth, and how many are known."""
        row = _covered(1, kind, self.truth[kind], readings[kind])
        return row["covered"], row["known"]


def windows_of(run: lv.Run) -> dict[int, Windows]:
    """What the virial thermometer kept of every chain."""
    names = list(run.manifest["tensors"])
    found = {}
    for chain, at in zip(run.chains, run.store.checkpoints(run.chains), strict=True):
        read = Windows.read(at.tensors, at.values["thermometer"], names)
        assert read is not None
        found[chain] = read
    return found


def about_own_means(run: lv.Run) -> Estimate:
    """The virial temperature about each chain's own mean, which is not independent of its readings."""
    sizes = {name: math.prod(spec["shape"]) for name, spec in run.manifest["tensors"].items()}
    weights = np.array(list(sizes.values())) / sum(sizes.values())
    num_data = run.manifest["num_data"]
    return mean_and_error(*((own.about(own.mean, num_data) @ weights).tolist() for own in windows_of(run).values()))


def two_weights(chains: int = 64, seed: int = 0) -> tuple[lv.Run, dict[str, float]]:
    """Two weights, a at T = 1.08 and b at 0.93, from exact draws, too few steps for chains to forget them."""
    x = torch.linalg.qr(torch.randn(60, 2, generator=torch.Generator().manual_seed(4))).Q * math.sqrt(60)
    truth = {"a": 1.08, "b": 0.93}

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.stack([self.a, self.b])

    def sampler(params: list[Tensor], **options: Any) -> lv.Sampler:
        groups = [{"params": [p], "temperature": t} for p, t in zip(params, truth.values(), strict=True)]
        return lv.SGLD(groups, lr=2e-3, **options)

    def exact(chain: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(chain + chains * seed)
        return {name: 60 / 61 + math.sqrt(t / 61) * torch.randn(1, generator=generator) for name, t in truth.items()}

    posterior = lv.Posterior(Two(), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(1.0), num_data=60)
    data = (x, x.sum(1, keepdim=True))
    options: dict[str, Any] = {"batch_size": 60, "steps": 800, "burn_in": 200, "thin": 10, "init": exact}
    return draw(posterior, data, sampler, chains=chains, seed=seed, **options), truth


class Yacht:
    """6-10-1 with tanh, 81 weights, known noise, N(0, 1) priors, and draws of its posterior by HMC."""

    def __init__(self, chains: int = 64, adapt: int = 600, iterations: int = 200, noise: float = 0.1) -> None:
        self.noise = noise
        self.data = lv.data.uci("yacht").tensors
        x, y = (t.double() for t in self.data)

        def energy(theta: Tensor) -> Tensor:
            count = len(theta)
            hidden = torch.einsum("chi,ni->cnh", theta[:, :60].reshape(count, 10, 6), x) + theta[:, None, 60:70]
            output = torch.einsum("cnh,ch->cn", hidden.tanh(), theta[:, 70:80]) + theta[:, 80:]
            return (output - y[:, 0]).square().sum(1) / (2 * self.noise**2) + theta.square().sum(1) / 2

        self.energy = energy
        start = 0.5 * torch.randn(chains, 81, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.positions, energies = hmc(energy, start, adapt=adapt, iterations=iterations, leapfrogs=80)
        self.exact_energy = mean_and_error(*energies.T.tolist())

    def posterior(self) -> lv.Posterior:
        """At one of the draws."""
        model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
        likelihood = lv.likelihoods.Gaussian(self.noise)
        posterior = lv.Posterior(model, likelihood, lv.priors.Gaussian(1.0), num_data=len(self.data[0]))
        load_tensors(posterior, self.start(0))
        return posterior

    def start(self, chain: int) -> dict[str, Tensor]:
        """One of the draws: the last ones of HMC's chains, then those forty iterations before."""
        iteration, chain = divmod(chain, self.positions.shape[1])
        w1, b1, w2, b2 = torch.split(self.positions[-1 - 40 * iteration, chain].float(), [60, 10, 10, 1])
        return {"0.weight": w1.reshape(10, 6), "0.bias": b1, "2.weight": w2[None], "2.bias": b2}

    def mean_energy(self, run: lv.Run) -> Estimate:
        """⟨U⟩ of a run, in the units of `energy`."""
        chains = []
        for c in run.chains:
            samples = torch.stack([torch.cat([t.flatten() for t in s.values()]) for s in run.chain(c)])
            chains.append(self.energy(samples.double()).tolist())
        return mean_and_error(*chains)

    def runs(self, chains: int = 64) -> dict[str, Callable[[], lv.Run]]:
        """What is to be read; so many chains of SGLD. NLD has the posterior for its target, and is not frozen."""
        posterior, size = self.posterior(), len(self.data[0])
        limit = 2 / largest_curvature(posterior, self.data[0], self.data[1])
        sgld = partial(draw, posterior, self.data, lv.SGLD, batch_size=size, steps=3000, chains=chains, init=self.start)
        nld = partial(draw, posterior, self.data, lv.NLD, batch_size=size, steps=400, chains=16, init=self.start)
        nld = partial(nld, target="posterior", freeze=False, burn_in=100, damping=0.1, mode="sequential", probe=0.1)
        return {
            "SGLD, a tenth of the stability limit": partial(sgld, lr=0.1 * limit),
            "SGLD, six tenths of it": partial(sgld, lr=0.6 * limit),
            "NLD, lr 0.005": partial(nld, lr=0.005),
            "NLD, lr 0.015": partial(nld, lr=0.015),
        }


def run_temperature(out: Path, say: Callable[[str], None] = print) -> None:
    """Measure what `out/results.json` does not have yet; write it and `out/tables.md` after each part."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"replicates": [], "runs": []}
    results["environment"] = environment(torch.device("cpu"))

    def write() -> None:
        path.write_text(json.dumps(results, indent=1) + "\n")
        (out / "tables.md").write_text(tables(results))

    if not results["runs"]:
        run, truth = two_weights()
        results["runs"].append({"name": "two weights", **_row(run), "truth": 1.005})
        for name, found in run.temperatures().items():
            results["runs"].append({"name": f"two weights, {name}", "virial": found, "truth": truth[name]})
        write()
    done = {row["case"] for row in results["replicates"]}
    for steps, runs in ((450, 10), (4000, 5)):
        if (case := f"regression, {steps:,} steps") not in done:
            results["replicates"] += [{"case": case, **row} for row in _regression(steps, runs)]
            write()
    if (case := "two weights") not in done:
        results["replicates"] += [{"case": case, **row} for row in _two_weights()]
        write()
    yacht = Yacht()
    results["hmc_energy"] = yacht.exact_energy
    if (case := "yacht, SGLD") not in done:
        run = yacht.runs(chains=320)["SGLD, a tenth of the stability limit"]()
        results["replicates"] += [{"case": case, **row} for row in _yacht(run)]
        write()
    for short, sample in yacht.runs().items():
        name = f"yacht: {short}"
        if not any(row["name"] == name for row in results["runs"]):
            run = sample()
            results["runs"].append({"name": name, **_row(run), "energy": yacht.mean_energy(run), "truth": 1.0})
            say(f"{name}: {results['runs'][-1]}")
            write()


def _regression(steps: int, runs: int) -> list[dict[str, Any]]:
    """Of so many runs of 400 chains, together."""
    parts = [Replicates(chains=400, steps=steps, probe=0.3, seed=seed) for seed in range(runs)]
    truth = {kind: float(np.mean([part.truth[kind] for part in parts])) for kind in parts[0].truth}
    rows = []
    for chains in (1, 2, 4, 10):
        each = [part.readings(chains) for part in parts]
        for kind in each[0]:
            together = [reading for part in each for reading in part[kind]]
            rows.append(_covered(chains, kind, truth[kind.partition(",")[0]], together))
    return rows


def _two_weights(runs: int = 100, groups: int = 4, chains: int = 64) -> list[dict[str, Any]]:
    """Of so many runs of some groups of chains, by tensor."""
    readings: dict[str, list[Estimate]] = {}
    for seed in range(runs):
        run, truth = two_weights(groups * chains, seed)
        for name, found in _in_groups(run, chains).items():
            readings.setdefault(name, []).extend(found)
    return [_covered(chains, f"virial, {name}", truth[name], found) for name, found in readings.items()]


def _yacht(run: lv.Run) -> list[dict[str, Any]]:
    """Of one run of many chains, over all weights."""
    sizes = {name: math.prod(spec["shape"]) for name, spec in run.manifest["tensors"].items()}
    return [_covered(chains, "virial", 1.0, _in_groups(run, chains, sizes)["all"]) for chains in (2, 4, 10)]


def _in_groups(run: lv.Run, chains: int, sizes: Mapping[str, int] | None = None) -> dict[str, list[Estimate]]:
    """Virial temperatures by so many chains each: of every tensor or, with their sizes, over all weights."""
    windows = windows_of(run)
    found: dict[str, list[Estimate]] = {}
    for first in range(0, len(windows) - chains + 1, chains):
        some = {c: windows[c] for c in range(first, first + chains)}
        about = leave_one_out(some, run.manifest["num_data"])
        for name, each in (about if sizes is None else {"all": over_tensors(about, sizes)}).items():
            found.setdefault(name, []).append(virial_temperature(*each.values()))
    return found


def _covered(chains: int, kind: str, truth: float, readings: list[Estimate]) -> dict[str, Any]:
    """A row: how many of the known readings are within two of their errors of the truth."""
    known = [e for e in readings if e.known]
    return {
        "chains": chains,
        "kind": kind,
        "truth": truth,
        "mean": float(np.mean([e.mean for e in readings if math.isfinite(e.mean)])),
        "error": float(np.median([e.error for e in known])),
        "covered": float(np.mean([abs(e.mean - truth) < 2 * e.error for e in known])),
        "known": len(known),
        "of": len(readings),
    }


def _row(run: lv.Run) -> dict[str, Any]:
    found = run.all_temperatures()
    row: dict[str, Any] = {"own": about_own_means(run), "virial": found.virial}
    row |= {"gradient": found.gradient, "stiffest": found.stiffest, "verdict": found.judge().level}
    return row


def tables(results: Mapping[str, Any]) -> str:
    """Both tables, for a page."""
    lines = [
        "| run | truth | about the chain's own mean | virial | gradient | stiffest direction | ⟨U⟩ | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["runs"]:
        cells = [_shown(row.get(key)) for key in ("own", "virial", "gradient", "stiffest", "energy")]
        lines.append(f"| {row['name']} | {row['truth']:g} | {' | '.join(cells)} | {row.get('verdict', '')} |")
    if "hmc_energy" in results:
        lines += ["", f"⟨U⟩ by HMC: {_shown(results['hmc_energy'])}."]
    lines += [
        "",
        "| runs | chains | thermometer | truth | mean reading | median error | within two errors | known |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["replicates"]:
        lines.append(
            f"| {row['case']} | {row['chains']} | {row['kind']} | {row['truth']:.3f} | {row['mean']:.3f} | "
            f"{row['error']:.3f} | {row['covered']:.3f} | {row['known']} of {row['of']} |"
        )
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None or not math.isfinite(value[0]):
        return ""
    return f"{value[0]:.2f} ± {value[1]:.2f}" if math.isfinite(value[1]) else f"{value[0]:.2f} ± unknown"

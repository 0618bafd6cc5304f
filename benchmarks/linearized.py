"""How Laplace predicts: with the network at draws of the weights, or linearized about the mode, against HMC.

The same full covariance both ways, on UCI yacht: 6-10-1 with tanh, 81 weights, N(0, 1) priors, noise 0.15. The score is
the mean log predictive density of the standardized test targets, whose error is over test points; that of HMC over its
chains, each taken for itself, is given too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from benchmarks.temperature import Yacht
from langevin.inference.environment import environment

NOISE = 0.15
DRAWS = 2000


def run_linearized(out: Path, say: Callable[[str], None] = print) -> None:
    """Measure; write `out/linearized.json` and `out/linearized.md`."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    x, y = lv.data.uci("yacht", "test").tensors
    yacht = Yacht(chains=16, noise=NOISE)
    posterior, data = yacht.posterior(), (yacht.data[0], yacht.data[1])
    mode = lv.find_map(posterior, data, progress=False)
    found = {}
    for predictive in ("sampled", "linearized"):
        method = lv.Laplace("full", predictive=predictive)
        fit = lv.fit(posterior, data, method, init=mode, draws=DRAWS, progress=False)
        found[predictive] = _row(fit.predict(x).log_prob(y))
    outputs = _outputs(yacht.positions, x.double())
    found["hmc"] = _row(_log_density(outputs.flatten(0, 1), y))
    chains = [float(_log_density(outputs[:, c], y).mean()) for c in range(outputs.shape[1])]
    found["hmc"] |= {"chains": chains}
    results = {"scores": found, "environment": environment(torch.device("cpu"))}
    (out / "linearized.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "linearized.md").write_text(table(found))
    say(table(found))


def _outputs(positions: Tensor, x: Tensor) -> Tensor:
    """Of the network at every position, (iterations, chains, n)."""
    w1, b1, w2, b2 = torch.split(positions, [60, 10, 10, 1], dim=-1)
    hidden = torch.einsum("...hi,ni->...nh", w1.reshape(*w1.shape[:-1], 10, 6), x) + b1.unsqueeze(-2)
    return torch.einsum("...nh,...h->...n", hidden.tanh(), w2) + b2


def _log_density(outputs: Tensor, y: Tensor) -> Tensor:
    """Of the mixture over the first axis, (n,)."""
    each = -((outputs - y[:, 0].double()) / NOISE).square() / 2 - math.log(NOISE * math.sqrt(2 * math.pi))
    return torch.logsumexp(each, 0) - math.log(len(outputs))


def _row(log_density: Tensor) -> dict[str, Any]:
    return {"mean": float(log_density.mean()), "error": float(log_density.std()) / math.sqrt(len(log_density))}


def table(found: dict[str, dict[str, Any]]) -> str:
    """For a page."""
    names = {
        "sampled": '`lv.Laplace("full", predictive="sampled")`, the former default',
        "linearized": '`lv.Laplace("full")`',
        "hmc": f"HMC, {len(found['hmc']['chains'])} chains",
    }
    lines = ["| | log predictive density |", "|---|---|"]
    for key, name in names.items():
        row = found[key]
        lines.append(f"| {name} | {row['mean']:.2f} ± {row['error']:.2f} |")
    return "\n".join(lines).replace("-", "−").replace("|−−−|−−−|", "|---|---|") + "\n"

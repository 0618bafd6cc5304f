"""`python -m benchmarks limits`: what large runs take, beside bars: restoring chains, diagnosing samples, memory.

Every figure is measured in a process of its own. Times are those of the processor, so that others on the machine count
little; memory is the peak resident size less what the process had with the model and the data in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import langevin as lv
from benchmarks.scaling import _table

BARS = {  # what: (bar, unit)
    "restore 1,000 chains, vectorised": (5.0, "s"),
    "restore 1,000 chains, sequential": (5.0, "s"),
    "convergence of 100,000 samples (43 weights)": (5.0, "s"),
    "peak memory of SGLD, 48 million weights": (4.0, "× the weights"),
    "peak memory of SGHMC, 48 million weights": (5.0, "× the weights"),
}


def write_limits(out: Path, say: Callable[[str], None]) -> None:
    """Measure, and write limits.json and the table."""
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in BARS:
        work = [sys.executable, "-m", "benchmarks.limits", name]
        found[name] = float(subprocess.run(work, check=True, capture_output=True, text=True).stdout)
        say(f"{name}: {found[name]:.3g} {BARS[name][1]}")
    (out / "limits.json").write_text(json.dumps(found, indent=2) + "\n")
    (out / "limits.md").write_text(table(found))


def table(found: dict[str, float]) -> str:
    """The table of the page."""
    rows = [(name, f"{value:.3g} {BARS[name][1]}", f"≤ {BARS[name][0]:g}") for name, value in found.items()]
    return _table(("", "measured", "bar"), rows)


def posterior_of(model: nn.Module, num_data: int) -> lv.Posterior:
    """A posterior of a classifier."""
    return lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=num_data)


def small(num_data: int = 60) -> tuple[lv.Posterior, Any]:
    """A network of 43 weights, and data."""
    torch.manual_seed(0)
    x = torch.randn(num_data, 4)
    return posterior_of(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), num_data), (x, x[:, :3].argmax(1))


def restoring(folder: Path, mode: str) -> float:
    """Seconds from `lv.resume` until every chain stands where its checkpoint left it."""
    posterior, data = small()
    options: Any = {"steps": 4, "burn_in": 0, "thin": 2, "chains": 1000, "mode": mode, "progress": False}
    lv.sample(posterior, data, lv.SGHMC, lr=1e-3, out=folder / "run", **options)
    from langevin.inference.engine import Engine

    restored, continued = [0.0], Engine._continued

    def timed(*rest: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return continued(*rest, **named)
        finally:
            restored[0] += time.process_time() - start

    first: list[float] = []

    def note(info: Any) -> None:
        if not first:
            first.append(time.process_time())

    Engine._continued = timed  # type: ignore[method-assign]
    start = time.process_time()
    lv.resume(folder / "run", posterior, data, steps=5, progress=False, callbacks=[note])
    before = first[0] - start  # opening, checks, and the first group
    return before if mode == "vectorised" else before + restored[0]


def diagnosing(folder: Path) -> float:
    """Seconds of `run.convergence()` of four chains of 25,000 samples."""
    posterior, _ = small()
    weights = {name: p.detach().clone() for name, p in posterior.trainable_parameters().items()}
    with lv.Recorder(posterior, out=folder / "run") as recorder:
        for chain in range(4):
            generator = torch.Generator().manual_seed(chain)
            for step in range(1, 25_001):
                for tensor in weights.values():
                    tensor.mul_(0.999).add_(torch.randn(tensor.shape, generator=generator), alpha=0.04)
                recorder.record(step, chain=chain, weights=weights)
    run = lv.load(folder / "run", posterior.model)
    assert isinstance(run, lv.Run)
    start = time.process_time()
    run.convergence()
    return time.process_time() - start


def peak_memory(folder: Path, sampler: Any) -> float:
    """The peak of sampling to disk beyond what model and data take, as a multiple of the weights."""
    lv.sample(*small(), sampler, lr=1e-4, steps=20, progress=False)  # what is loaded once
    layers = [layer for _ in range(12) for layer in (nn.Linear(2000, 2000), nn.ReLU())]
    posterior = posterior_of(nn.Sequential(*layers, nn.Linear(2000, 10)), 64)
    size = sum(p.nbytes for p in posterior.parameters())
    x, y = torch.randn(64, 2000), torch.randint(0, 10, (64,))
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    options: Any = {"steps": 12, "burn_in": 4, "thin": 4, "batch_size": 16, "checkpoint_steps": 6, "progress": False}
    lv.sample(posterior, (x, y), sampler, lr=1e-6, out=folder / "run", **options)
    return (_status("VmHWM") - before) / size


def _status(name: str) -> int:
    """An entry of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def measure(name: str) -> float:
    """One of `BARS`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("restore"):
            return restoring(Path(folder), name.rpartition(" ")[2])
        if name.startswith("convergence"):
            return diagnosing(Path(folder))
        return peak_memory(Path(folder), lv.SGHMC if "SGHMC" in name else lv.SGLD)


if __name__ == "__main__":
    print(measure(sys.argv[1]))

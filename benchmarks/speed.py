"""How fast langevin is, against plain SGD in the same run and, where they are installed, against its peers.

The limit is plain SGD: a sampler costs a gradient, which SGD pays too, and an update. Everything is measured on this
machine, with one thread and with two; the results go to a file, and the page is made from it.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import langevin as lv
from benchmarks import peers
from benchmarks.speed_page import page, renewed
from benchmarks.steps import measure_large, measure_numbers, measure_parts, measure_steps
from benchmarks.timing import compare, median_time
from benchmarks.workloads import CNN, CNN_64, RESNET, TIMED, TINY, WIDE, Workload, plain_sgd, sampler_step
from langevin.core.batches import as_batches
from langevin.inference.environment import environment
from langevin.inference.one_chain import OneChain
from langevin.inference.stacked_chains import StackedChains
from langevin.models import StridedCNN

COMMITTED = Path(__file__).resolve().parent  # the directory of the committed results
Say = Callable[[str], None]
Row = dict[str, Any]
_QUICK = ["SGLD", "pSGLD", "ATMC"]


def run_speed(
    out: Path, *, quick: bool = False, only: str | None = None, threads: Sequence[int] = (1, 2), say: Say = print
) -> dict[str, Any]:
    """Measure everything, or one section again; write results and page to `out`, and the tables of `docs/speed.md`.

    Quick results go to a directory of their own: they are refused where full ones are or belong.
    """
    sections: dict[str, Callable[[], Any]] = {
        "steps": lambda: [
            row
            for workload, names in _plan(quick)
            for row in measure_steps(workload, names, max(threads), 2.0 if quick else 6.0, quick, say)
        ],
        "numbers": lambda: measure_numbers(say),
        "parts": lambda: measure_parts(say),
        "large": lambda: measure_large(say),
        "kfac": lambda: [_kfac(workload, n, say) for workload in (TINY, WIDE, CNN, RESNET) for n in threads[-1:]],
        "chains": lambda: [_chains(chains, n, say) for n in threads for chains in (32, 128)],
        "prediction": lambda: _prediction(say),
        "fisher": lambda: _fisher(say),
        "cost": lambda: _cost(say),
        "memory": lambda: _memory(say),
        "start": lambda: _start(say),
    }
    if only is not None and only not in sections:
        raise ValueError(f"only={only!r}: choose one of {', '.join(sections)}.")
    found = _existing(out, quick, only)
    results: dict[str, Any] = (found if only is not None else {}) | {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "environment": environment(torch.device("cpu")),
        "peers": peers.installed(),
    }
    known = [f"{name} {version or '(not installed: left out)'}" for name, version in results["peers"].items()]
    say(f"peers: {', '.join(known)}")
    before = torch.get_num_threads()
    try:
        for name in ["steps"] if quick else [only] if only else sections:
            torch.set_num_threads(1)
            results[name] = sections[name]()
    finally:
        torch.set_num_threads(before)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if not quick:
        (out / "README.md").write_text(page(results))
        documentation = out.parent / "docs" / "speed.md"
        if documentation.exists():
            documentation.write_text(renewed(documentation.read_text(), results))
    return results


def default_directory(quick: bool) -> Path:
    """Where results go: the committed ones to `benchmarks`, quick ones to a directory of their own."""
    return Path("benchmarked/quick") if quick else Path("benchmarks")


def _existing(out: Path, quick: bool, only: str | None) -> dict[str, Any]:
    """The results that are in a directory already, none if there are none; refused if they must not be touched."""
    file = out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if quick and (out.resolve() == COMMITTED or (results and not results.get("quick"))):
        raise ValueError(
            f"{file} is for full results; quick ones go to another directory: python -m benchmarks --quick --out "
            f"{default_directory(quick=True)}."
        )
    if quick and only not in (None, "steps"):
        raise ValueError(f"--quick measures steps only; leave out --quick or --only {only}.")
    if only is not None and not quick and results.get("quick"):
        raise ValueError(f"{file} has quick results, which can't be completed section by section; leave out --only.")
    return results


def _plan(quick: bool) -> list[tuple[Workload, list[str]]]:
    if quick:
        return [(TINY, _QUICK), (CNN_64, _QUICK)]
    every = [name for name in TIMED if name != "KSGLD"]  # it has a section of its own
    return [(TINY, every), (WIDE, every), (CNN_64, every), (CNN, every), (RESNET, every)]


def _kfac(workload: Workload, threads: int, say: Say) -> Row:
    """K-FAC at its default intervals: an ordinary step, one with new factors, one with new inverses, and their mean."""
    torch.set_num_threads(threads)
    baseline = median_time(plain_sgd(workload), seconds=1.0)
    ordinary = median_time(
        sampler_step(workload, partial(TIMED["KSGLD"], warmup=0, factor_interval=10**6, inverse_interval=10**6)),
        seconds=3.0,
        least=3,
    )
    factors = median_time(
        sampler_step(workload, partial(TIMED["KSGLD"], warmup=0, factor_interval=1, inverse_interval=10**6)),
        seconds=3.0,
        least=3,
    )
    inverses = median_time(
        sampler_step(workload, partial(TIMED["KSGLD"], warmup=0, factor_interval=1, inverse_interval=1)),
        seconds=3.0,
        least=2,
    )
    mean = ordinary + (factors - ordinary) / 10 + (inverses - factors) / 100
    row = {
        "model": workload.key,
        "threads": threads,
        "ordinary": _short(ordinary / baseline),
        "with_factors": _short(factors / baseline),
        "with_inverses": _short(inverses / baseline),
        "mean": _short(mean / baseline),
    }
    say(f"{workload.label}, {threads} thread{'s' * (threads > 1)}: KSGLD {row['mean']} × SGD over its intervals")
    return row


def _chains(count: int, threads: int, say: Say) -> Row:
    """Microseconds per chain and step of the tiny MLP: one after another, vectorised, compiled; and blackjax."""
    torch.set_num_threads(threads)  # blackjax takes what it finds
    data, posterior = TINY.batch(4096), TINY.posterior(4096)
    batches = as_batches(data, TINY.batch_size, 0, torch.device("cpu"))
    start = {name: p.detach() for name, p in posterior.trainable_parameters().items()}
    row: Row = {"chains": count, "threads": threads}
    steps: dict[str, Callable[[], Any]] = {}
    for label, kind, compiled in (
        ("sequential", OneChain, False),
        ("vectorised", StackedChains, False),
        ("compiled", StackedChains, True),
    ):
        numbers = range(1 if kind is OneChain else count)
        make = partial(lv.SGLD, lr=1e-6)
        group = kind(posterior, numbers, [start] * len(numbers), batches, make, None, seed=0, compiled=compiled)
        before = time.perf_counter()
        group.backward(whole=False)
        if compiled:
            row["compile_seconds"] = _short(time.perf_counter() - before)

        def step(group: Any = group, again: int = count if kind is OneChain else 1) -> None:
            for _ in range(again):
                group.backward(whole=False)
                group.advance()

        steps[label] = step
    if blackjax := peers.blackjax_chain_steps(TINY, count):
        steps["blackjax"] = blackjax
    measured = compare(steps, "vectorised", seconds=4.0, steps_per_round=2)
    row |= {name: _short(found.seconds / count * 1e6) for name, found in measured.items()}
    row["vectorised"] = _short(next(iter(measured.values())).baseline / count * 1e6)
    say(f"{count} chains of {TINY.label}, µs per chain and step: {row}")
    return row


def _prediction(say: Say) -> list[Row]:
    """Run.predict with samples on disk against as many bare forward passes."""
    rows = []
    for workload, samples, sizes in ((TINY, 100, (1, 16, 64, 1000)), (CNN_64, 100, (64, 256))):
        with tempfile.TemporaryDirectory() as folder:
            rows += _throughput(workload, samples, sizes, Path(folder, "run"), say)
    return rows


def _throughput(workload: Workload, samples: int, sizes: Sequence[int], out: Path, say: Say) -> list[Row]:
    """The throughput of predictions as a share of that of bare forward passes, by the number of inputs."""
    data, model = workload.batch(1024), workload.model()
    steps: dict[str, Any] = {"batch_size": 16, "steps": samples, "burn_in": 0, "thin": 1}
    run = lv.sample(workload.posterior(1024), data, lv.SGLD, lr=1e-6, **steps, out=out, progress=False)
    rows = []
    for size in sizes:
        inputs = data[0][:size]

        def bare(inputs: Any = inputs) -> None:
            with torch.no_grad():
                for _ in range(samples):
                    model(inputs)

        contenders: dict[str, Callable[[], Any]] = {"bare": bare, "predict": partial(run.predict, inputs)}
        measured = compare(contenders, "bare", seconds=3.0, steps_per_round=1)["predict"]
        share = _short(1 / measured.ratio)
        rows.append({"model": workload.key, "inputs": size, "samples": samples, "throughput": share})
        say(f"{workload.label}: {size} inputs at {share} of the throughput of bare forward passes")
    return rows


def _fisher(say: Say) -> Row:
    """A step in the full Fisher metric of 3,490 weights against one JᵀJ and one Cholesky factor of that size."""
    torch.manual_seed(0)
    x, y = torch.randn(1024, 1, 28, 28), torch.randint(10, (1024,))
    posterior = lv.Posterior(StridedCNN(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=1024)
    sampler = lv.NLD(posterior.parameters(), lr=1e-6, num_data=1024, target="as-printed")
    sampler.bind(posterior, (x, y))

    def step() -> None:
        sampler.zero_grad()
        posterior.loss(x[:64], y[:64]).backward()  # type: ignore[no-untyped-call]
        sampler.step()

    size = sum(p.numel() for p in posterior.parameters())
    rows = torch.randn(1024 * 10, size)

    def floor() -> None:
        matrix = rows.T @ rows
        matrix.diagonal().add_(1e3)
        torch.linalg.cholesky(matrix)

    measured = compare({"floor": floor, "step": step}, "floor", seconds=10.0, steps_per_round=1, warm_up=1)["step"]
    say(f"full Fisher of {size} weights: {measured.ratio:.2f} × (JᵀJ + Cholesky)")
    return {"parameters": size, **measured.as_dict()}


def _cost(say: Say) -> dict[str, list[Row]]:
    """Microseconds of a step of `sample`'s own loop against parameters and data; chains are in `_chains`."""
    parameters, data = [], []
    for width in (40, 400, 4000):
        options = {"in_features": 10, "out_features": 10, "widths": (width,)}
        workload = Workload("width", f"MLP 10-{width}-10", "mlp", options, (10,), 64)
        count = sum(p.numel() for p in workload.model().parameters())
        measured = compare(
            {"SGD": plain_sgd(workload), "SGLD": sampler_step(workload, TIMED["SGLD"])}, "SGD", seconds=2.0
        )["SGLD"]
        parameters.append(
            {"parameters": count, "ratio": _short(measured.ratio), "microseconds": _short(measured.seconds * 1e6)}
        )
    for size in (1_000, 100_000, 1_000_000):
        batches = as_batches(TINY.batch(size), 64, 0, torch.device("cpu"))
        posterior = TINY.posterior(size)
        start = {name: p.detach() for name, p in posterior.trainable_parameters().items()}
        chain = OneChain(posterior, [0], [start], batches, partial(lv.SGLD, lr=1e-9), None, seed=0)

        def step(chain: Any = chain) -> None:
            chain.backward()
            chain.advance()

        data.append({"data": size, "microseconds": _short(median_time(step, seconds=2.0) * 1e6)})
    say(f"cost against parameters {parameters}, against data {data}")
    return {"parameters": parameters, "data": data}


def _memory(say: Say) -> list[Row]:
    """Peak memory of a process that saves so many samples of the tiny MLP on disk."""
    program = (
        "import re, sys, torch; from pathlib import Path; import langevin as lv;"
        "from benchmarks.workloads import TINY;"
        "n = int(sys.argv[1]); torch.set_num_threads(1); x, y = TINY.batch(256);"
        "run = lv.sample(TINY.posterior(256), (x, y), lv.SGLD, lr=1e-6, batch_size=16, steps=n, burn_in=0,"
        " thin=1, out=sys.argv[2], progress=False);"
        "print(len(run), re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    if not Path("/proc/self/status").exists():  # elsewhere the peak includes that of the parent process
        say("peak memory: measured on Linux only")
        return []
    rows = []
    for samples in (10, 1_000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", program, str(samples), str(Path(folder, "run"))]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
        saved, peak = map(int, said.stdout.split())
        rows.append({"samples": saved, "megabytes": _short(peak * 1024 / 1e6)})
    say(f"peak memory: {rows}")
    return rows


def _start(say: Say) -> Row:
    """Seconds that a new process takes to import, and to sample one step; the minimum of five."""

    def least(program: str) -> float:
        times = []
        for _ in range(5):
            before = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
            times.append(time.perf_counter() - before)
        return min(times)

    first = (
        "import langevin as lv; from benchmarks.workloads import TINY;"
        "lv.sample(TINY.posterior(256), TINY.batch(256), lv.SGLD, lr=1e-6, batch_size=16, steps=1, burn_in=0,"
        " progress=False)"
    )
    torch_only, both = least("import torch"), least("import torch, langevin")
    row = {
        "import_torch": _short(torch_only),
        "import_langevin": _short(both),
        "ratio": _short(both / torch_only),
        "first_use": _short(least("import langevin as lv; lv.Posterior, lv.sample")),
        "first_step": _short(least(first)),
    }
    say(f"start: {row}")
    return row


def _short(value: float) -> float:
    return float(f"{value:.3g}")

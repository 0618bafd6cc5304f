"""`python -m benchmarks scaling`: the tables of docs/scaling.md.

What two processes cost and save here, which faults were survived, and the arithmetic of a large run.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from langevin.inference.callbacks import StepInfo

CASES = {"one process, one chain": (1, 1, 1), "two processes, a chain each": (2, 2, 1), "two, one chain": (2, 1, 2)}
RESNET = 25_558_032  # parameters of ResNet++-50
GPUS, CHAINS, SAMPLES = 64, 16, 100
FLOPS = 4.1e9  # of a forward pass of ResNet-50 on one image; a multiplication with its addition counts once


def write_scaling(out: Path, faults: Path | None, say: Callable[[str], None], steps: int = 120) -> None:
    """Measure, and write results.json and the tables; `faults` is the JUnit file of a run of the fault tests."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    results["measured"] = {name: _measured(*case, steps) for name, case in CASES.items()}
    say(json.dumps(results["measured"]))
    if faults is not None:
        results["faults"] = read_faults(faults)
    file.write_text(json.dumps(results, indent=2) + "\n")
    for name, table in tables(results).items():
        (out / f"{name}.md").write_text(table)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """The tables of the page, by name."""
    return {
        "measured": _table(
            ("", "processes", "step, ms", "steps/s of all chains"),
            [
                (name, str(m["processes"]), f"{m['ms']:.1f}", f"{m['chains'] * 1000 / m['ms']:.0f}")
                for name, m in results["measured"].items()
            ],
        ),
        "faults": _table(
            ("fault", "tried", "survived"),
            [(name, str(f["tried"]), str(f["survived"])) for name, f in results.get("faults", {}).items()],
        ),
        "arithmetic": _table(("", "", "how"), arithmetic()),
    }


def arithmetic() -> list[tuple[str, str, str]]:
    """A ResNet++-50 on 64 GPUs with 16 chains, in numbers."""
    weights, replicas = 4 * RESNET, GPUS // CHAINS
    sent = 2 * (replicas - 1) / replicas * weights
    samples = CHAINS * SAMPLES
    return [
        ("mesh", f"chains={CHAINS},data={replicas}", f"{GPUS} GPUs / {CHAINS} chains"),
        ("weights of a chain", _size(weights), f"4 bytes × {RESNET:,}"),
        ("sent and received by a GPU per step", _size(sent), "2(D−1)/D × weights, all-reduce in a ring of D = 4"),
        ("the same at 25 GB/s (200 Gbit/s network)", f"{sent / 25e9 * 1e3:.1f} ms", "hidden behind the backward pass"),
        ("between chains", "nothing", "they share a directory, no message"),
        ("besides, per step", "8 bytes", "loss and the wish to stop; a hash of 8 bytes when a sample is kept"),
        ("samples on the disk", _size(samples * weights), f"{CHAINS} chains × {SAMPLES} samples"),
        ("with sample_dtype=torch.float16", _size(samples * weights / 2), "half"),
        ("checkpoints (SGHMC)", _size(CHAINS * 4 * weights), "weights, momentum, two vectors of the thermometers"),
        ("prediction for one image", f"{samples * FLOPS / 1e12:.1f} TFLOP", f"{samples} forward passes of 4.1 GFLOP"),
        ("with 30 of the samples", f"{30 * FLOPS / 1e12:.2f} TFLOP", "every 53rd"),
        ("reading all samples once, at 2 GB/s", f"{samples * weights / 2e9:.0f} s", "per call of predict, whatever x"),
    ]


def read_faults(file: Path) -> dict[str, dict[str, int]]:
    """Faults tried and survived, by kind, from the tests that call `record_property("faults", number)`."""
    kinds: dict[str, dict[str, int]] = {}
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        properties = {p.get("name"): p.get("value") or "" for p in case.iter("property")}
        if "fault" in properties and case.find("skipped") is None:
            row = kinds.setdefault(properties["fault"], {"tried": 0, "survived": 0})
            failed = any(case.find(outcome) is not None for outcome in ("failure", "error"))
            number = int(properties.get("faults", "1"))
            row["tried"] += number
            row["survived"] += 0 if failed else number
    return dict(sorted(kinds.items()))


def _measured(processes: int, chains: int, data: int, steps: int) -> dict[str, float]:
    """The median time of a step, in processes of one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "ms")
        worker = ["-m", "benchmarks.scaling", str(out), str(chains), f"chains={chains},data={data}", str(steps)]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *(launcher if processes > 1 else []), *worker]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        return {"processes": processes, "chains": chains, "ms": float(out.read_text())}


def _work(out: str, chains: str, mesh: str, steps: str) -> None:
    """What each process runs: SGLD of an MLP of 288,010 weights on the digits, batches of 512."""
    import torch

    import langevin as lv

    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = lv.data.digits("train").tensors
    model = lv.models.MLP(64, 10, widths=(500, 500))
    likelihood, prior = lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0)
    posterior = lv.Posterior(model, likelihood, prior, num_data=len(train[0]))
    times: list[float] = []

    def note(info: StepInfo) -> None:
        times.append(time.perf_counter())

    lv.sample(
        posterior,
        train,
        lv.SGLD,
        lr=1e-3,
        steps=int(steps),
        thin=int(steps) // 4,
        batch_size=512,
        chains=int(chains),
        out=out + "-run",
        mesh=mesh,
        progress=False,
        callbacks=[note],
    )
    if os.environ.get("RANK", "0") == "0":
        gaps = [b - a for a, b in pairwise(times)]
        Path(out).write_text(str(statistics.median(gaps) * 1e3))


def _size(size: float) -> str:
    """A number of bytes to three digits: 164 GB."""
    power = int(math.log10(size) / 3)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def refresh(page: Path, folder: Path) -> None:
    """Put those tables of a folder that a page has room for into it, between `<!-- name -->` and `<!-- end -->`."""
    text = page.read_text()
    for file in folder.glob("*.md"):
        before, begin, rest = text.partition(f"<!-- {file.stem} -->\n")
        if begin:
            text = before + begin + file.read_text() + rest[rest.index("<!-- end -->") :]
    page.write_text(text)


if __name__ == "__main__":
    _work(*sys.argv[1:])

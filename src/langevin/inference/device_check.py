"""A check of a device, in seconds: `langevin doctor --device cuda`.

The library is developed on machines without a GPU. What can be checked where there is one is whether its kernels agree
with the CPU's, whether the noise has the right moments, whether a run repeats itself, and how fast it is.
"""

from __future__ import annotations

import copy
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from langevin.core import random
from langevin.core.devices import synchronize
from langevin.core.likelihoods import Categorical
from langevin.core.posterior import Posterior
from langevin.inference.doctor import Finding
from langevin.inference.sample import sample
from langevin.kernels import philox, updates
from langevin.samplers import ATMC, SGHMC, SGLD, SGNHT, Sampler, pSGLD

_METHODS: tuple[type[Sampler], ...] = (SGLD, pSGLD, SGHMC, SGNHT, ATMC)
_WHERE: Any = {"seed": 2**63 + 11, "step": 2**33 + 5}


def examine_device(name: str, *, weights: int = 20_000_000) -> list[Finding]:
    """All findings about a device. `weights` are those of the updates that are timed; a tenth of them on the CPU."""
    try:
        device = torch.empty(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        advice = "torch.cuda.is_available() must be True; see pytorch.org for the build that fits your driver."
        why = str(error).splitlines()[0].rstrip(".")
        return [Finding("error", "device", f"{name} can't be used: {why}. {advice}")]
    weights = weights // 10 if device.type == "cpu" else weights
    findings = [_describe(device)]
    for check, function in (
        ("noise", _noise),
        ("mini-batches", _batches),
        ("moments", _moments),
        ("updates", _updates),
        ("a run", _run),
        ("speed", lambda device: _speed(device, weights)),
    ):
        try:
            findings += [Finding(level, check, message) for level, message in function(device)]
        except Exception as error:  # whatever a device, its driver or its compiler raises is a finding
            message = str(error).strip().splitlines() or [""]
            findings.append(Finding("error", check, f"{type(error).__name__}: {message[0]}"))
    if any(finding.level == "error" for finding in findings):
        what = "Send all of this, and what `python -m torch.utils.collect_env` prints, with an issue"
        instead = "; until then LANGEVIN_KERNELS=0 uses torch operations alone." if updates.uses_triton(device) else "."
        findings.append(Finding("note", "what to do", what + instead))
    return findings


Found = Iterator[tuple[Any, str]]


def _describe(device: torch.device) -> Finding:
    parts = [f"torch {torch.__version__}"]
    if device.type == "cuda":
        own = torch.cuda.get_device_properties(device)
        parts.insert(0, f"{own.name}, {own.total_memory / 1e9:.0f} GB, capability {own.major}.{own.minor}")
        parts.append(f"CUDA {torch.version.cuda or torch.version.hip}")
    parts.append(_kernels(device))
    return Finding("ok", "device", f"{device}: {', '.join(parts)}.")


def _kernels(device: torch.device) -> str:
    if updates.uses_triton(device):
        return f"kernels of Triton {importlib.metadata.version('triton')}"
    return "compiled kernels" if device.type == "cpu" and updates.enabled() else "torch operations, no kernels"


def _noise(device: torch.device) -> Found:
    """The kernel of the device, and torch operations on the CPU."""
    for dtype in (torch.float32, torch.float64):
        there = torch.empty(1, 10_000, dtype=dtype, device=device)
        random.normal_rows(there, chains=[9], start=700, **_WHERE)
        where: Any = {**_WHERE, "chain": 9, "stream": random.Stream.INJECTED, "start": 700}
        here = philox.normals(10_000, **where, dtype=dtype, device=torch.device("cpu"))
        largest, allowed = float((there[0].cpu() - here).abs().max()), 64 * torch.finfo(dtype).eps
        message = f"{dtype} normals agree with torch operations on the CPU to {largest:.1g}; {allowed:.1g} is allowed."
        yield "ok" if largest <= allowed else "error", message


def _batches(device: torch.device) -> Found:
    for size in (1, 100, 999):
        where: Any = {**_WHERE, "chain": [0, 9]}
        there = random.random_subset(1000, size, **where, device=device)
        if not torch.equal(there.cpu(), random.random_subset(1000, size, **where)):
            yield "error", f"The indices of {size} of 1000 examples are not those of the CPU."
            return
    yield "ok", "The indices are those of the CPU."


def _moments(device: torch.device) -> Found:
    """Mean, variance and fourth moment of a million normals, in standard errors."""
    count = 1_000_000
    z = random.normal(count, chain=0, device=device, **_WHERE).double()
    found = {"mean": (z, 0.0, 1.0), "variance": (z.square(), 1.0, 2.0), "fourth moment": (z**4, 3.0, 96.0)}
    errors = {name: float(t.mean() - mean) / (variance / count) ** 0.5 for name, (t, mean, variance) in found.items()}
    shown = ", ".join(f"{name} {error:+.1f}" for name, error in errors.items())
    worst = max(abs(error) for error in errors.values())
    yield "ok" if worst < 5 else "error", f"Of a million normals, in standard errors: {shown}."


def _updates(device: torch.device) -> Found:
    """Some steps of each method in float64, with its kernel on the device and in torch operations on the CPU."""
    worst: dict[str, float] = {}
    for kind in _METHODS:
        ends = [_moved(kind, where, on) for where, on in ((device, True), (torch.device("cpu"), False))]
        worst[kind.__name__] = max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))
    name, largest = max(worst.items(), key=lambda item: item[1])
    methods = ", ".join(worst)
    message = f"{methods}: they agree with torch operations on the CPU to {largest:.1g}"
    yield "ok" if largest < 1e-10 else "error", f"{message}{'.' if largest < 1e-10 else f', the worst is {name}.'}"


def _moved(kind: type[Sampler], device: torch.device, on: bool) -> list[Tensor]:
    shapes = ((50, 41), (3,), (), (2500,))
    drawn = [
        random.normal(torch.Size(shape).numel(), seed=1, chain=0, step=number, dtype=torch.float64).reshape(shape)
        for number, shape in enumerate(shapes)
    ]
    params = [nn.Parameter(t.to(device)) for t in drawn]
    with updates.switched(on):
        sampler = kind(params, lr=1e-2, num_data=500, seed=3, chain=2)
        for _ in range(4):
            for p in params:
                p.grad = 1.5 * p.detach() + 0.1
            sampler.step()
    return [p.detach().cpu() for p in params]


def _run(device: torch.device) -> Found:
    """A small network, sampled twice on the device and once on the CPU."""
    x = random.normal(800, seed=0, chain=0, step=0).reshape(200, 4)
    y = (x.sum(1) > 0).long()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    ends = []
    for where in (device, device, torch.device("cpu")):
        posterior = Posterior(copy.deepcopy(model).to(where), Categorical(), num_data=200)
        options: Any = {"lr": 1e-2, "steps": 100, "burn_in": 50, "batch_size": 20, "chains": 2, "mode": "vectorised"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so short a run has not converged
            run = sample(posterior, (x, y), SGHMC, **options, compile=False, progress=False)
        ends.append(torch.cat([t.flatten().cpu() for t in run[-1].values()]))
    if torch.equal(ends[0], ends[1]):
        yield "ok", "Repeated, a run has the same samples, bit for bit."
    else:
        yield "warning", "Repeated, a run has other samples: torch.use_deterministic_algorithms(True) may help."
    largest = float((ends[0] - ends[2]).abs().max())
    message = f"After 100 steps its weights differ from those on the CPU by {largest:.1g}."
    yield "ok" if largest < 1e-2 else "error", message


def _speed(device: torch.device, weights: int) -> Found:
    a, b = (torch.zeros(weights, device=device) for _ in range(2))
    bandwidth = 8 * weights / _seconds(lambda: b.copy_(a), device)
    yield "ok", f"Memory: {bandwidth / 1e9:.0f} GB/s, read and written by a copy."
    buffer = a[None]
    per_normal = _seconds(lambda: random.normal_rows(buffer, chains=[0], **_WHERE), device) / weights
    yield "ok", f"Noise: {per_normal * 1e12:.0f} ps for a normal."
    for kind, moved in ((SGLD, 12), (ATMC, 28)):  # bytes of a weight: θ and g are read, θ is written; u and ξ both
        p = nn.Parameter(torch.zeros(weights, device=device))
        p.grad = torch.zeros_like(p)
        sampler = kind([p], lr=1e-4, num_data=1000)
        sampler.looks_for_divergence = False
        each = _seconds(sampler.step, device) / weights
        share = moved / each / bandwidth
        yield "ok", f"{kind.__name__}: {each * 1e12:.0f} ps for a weight, {share:.0%} of the bandwidth of the copy."


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The median time of a few calls, after two that are not counted."""
    times = []
    for _ in range(7):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[2]

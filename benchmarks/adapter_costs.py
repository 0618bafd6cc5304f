"""What sampling adapters costs beside fine-tuning them with AdamW: time of a step, memory, disk, predictions."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from benchmarks.adapter_task import Batch
from benchmarks.timing import Step, compare

_BATCH = 32
_SAMPLERS: dict[str, dict[str, Any]] = {"SGLD": {"lr": 1e-4}, "SGHMC": {"lr": 1e-4}}


def costs(make: Callable[[], lv.Posterior], train: Batch, work: Path, seconds: float = 40.0) -> dict[str, Any]:
    """All of them; `make` makes the posterior anew."""
    batch = {name: value[:_BATCH] for name, value in train.items()}
    posterior = make()
    adapters = sum(p.nbytes for p in posterior.trainable_parameters().values())
    steps = {"AdamW": fine_tuning(make(), batch)} | {
        name: sampling(make(), batch, name, options) for name, options in _SAMPLERS.items()
    }
    timed = compare(steps, "AdamW", seconds=seconds)
    del steps
    fine_tuned = live_bytes(lambda: fine_tuning(make(), batch))
    memory = {
        name: (live_bytes(lambda n=name, o=options: sampling(make(), batch, n, o)) - fine_tuned) / adapters  # type: ignore[misc]
        for name, options in _SAMPLERS.items()
    }
    memory["lv.sample, SGHMC"] = (live_in_sample(make, train, work) - fine_tuned) / adapters
    shutil.rmtree(work / "costs", ignore_errors=True)
    run = lv.sample(
        posterior,
        train,
        lv.SGHMC,
        lr=1e-4,
        steps=100,
        burn_in=0,
        thin=2,
        batch_size=_BATCH,
        out=work / "costs",
        progress=False,
        probe=0.0,
    )
    written = sum(file.stat().st_size for file in (work / "costs" / "samples").rglob("*.safetensors"))
    one = {name: value[:1] for name, value in train.items() if name != "labels"}
    return {
        "steps": {name: found.as_dict() for name, found in timed.items()},
        "memory": memory,
        "adapter_bytes": adapters,
        "sample_bytes": written / len(run),
        "model_bytes": sum(p.nbytes for p in posterior.model.parameters()),
        "samples": len(run),
        **_prediction_times(run, one),
    }


def fine_tuning(posterior: lv.Posterior, batch: Batch) -> Step:
    """A step of plain fine-tuning: the model's own loss and AdamW."""
    model = posterior.model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def sampling(posterior: lv.Posterior, batch: Batch, name: str, options: dict[str, Any]) -> Step:
    """A step of a loop of one's own: the posterior's loss, prior included, and the sampler."""
    sampler = getattr(lv, name)(list(posterior.trainable_parameters().values()), num_data=posterior.num_data, **options)
    x, y = {key: value for key, value in batch.items() if key != "labels"}, batch["labels"]

    def step() -> None:
        sampler.zero_grad()
        posterior.loss(x, y).backward()  # type: ignore[no-untyped-call]
        sampler.step()

    return step


def live_bytes(make: Callable[[], Step]) -> int:
    """The memory of all tensors that Python knows, after a few steps, above what there was before."""
    before = _bytes()
    step = make()
    for _ in range(3):
        step()
    return _bytes() - before


def live_in_sample(make: Callable[[], lv.Posterior], train: Batch, work: Path) -> int:
    """The same, within `lv.sample` on disk."""
    shutil.rmtree(work / "costs", ignore_errors=True)
    seen: list[int] = []
    before = _bytes()

    def look(info: Any) -> None:
        if info.step == 5:
            seen.append(_bytes() - before)

    options: dict[str, Any] = {
        "steps": 12,
        "burn_in": 10,
        "thin": 1,
        "batch_size": _BATCH,
        "progress": False,
        "probe": 0.0,
    }
    options |= {"mode": "sequential", "out": work / "costs"}
    lv.sample(make(), train, lv.SGHMC, lr=1e-4, callbacks=[look], **options)
    return seen[0]


def _bytes() -> int:
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _prediction_times(run: lv.Run, x: Batch, rounds: int = 7) -> dict[str, float]:
    predictor = run.predictors[0][0]
    named = {predictor._names[name]: torch.stack([sample[name] for sample in run]) for name in run[0]}
    found = {}
    with torch.no_grad():
        for name, compute in (("together", predictor._vectorised), ("one_by_one", predictor._one_by_one)):
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                compute(named, x)
                times.append(time.perf_counter() - began)
            found[name] = 1e3 * sorted(times)[rounds // 2]
    return found

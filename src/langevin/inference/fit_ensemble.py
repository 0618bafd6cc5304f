"""`lv.fit(posterior, data, lv.DeepEnsemble(5))`: members trained together, by the recipe of the warm start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from langevin.approximations.deep_ensemble import DeepEnsemble
from langevin.core.batches import as_batches
from langevin.core.posterior import Posterior
from langevin.ensembles.fit import Fit, read_approximation
from langevin.ensembles.predictor import Predictor
from langevin.inference import checks
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.stages import StageStores
from langevin.inference.autopilot.warm_start import run_warm_start
from langevin.inference.engine import Engine
from langevin.inference.interrupt import resumable_stages
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.steppers import OptimizerFactory
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore


def fit_ensemble(
    posterior: Posterior,
    data: Any,
    *,
    batch_size: int | None,
    seed: int,
    out: str | Path | None,
    tags: Mapping[str, Any] | None,
    about: Mapping[str, Any],
    interval: CheckpointInterval,
    progress: bool,
) -> Fit:
    """A new ensemble; `complete` goes on with it after an interruption."""
    loader = isinstance(data, torch.utils.data.DataLoader)
    batches = as_batches(data, None if loader else 1, seed, device_of(posterior))
    checks.check_data(posterior, batches, seed)
    settings = RunSettings(1, 0, 1, 0, 1, seed, batch_size, "sequential", False, 1, None, measure_temperature=False)
    engine = Engine(posterior, batches, OptimizerFactory(torch.optim.AdamW), None, settings)
    with checks.preserve_rng_state():
        manifest = make_manifest(engine, posterior, inputs=inputs_of(batches), tags=tags) | dict(about)
    store: SampleStore = MemoryStore(manifest) if out is None else DirectoryStore.create(out, manifest)
    with store.writing():
        store.write_fixed(posterior.fixed_tensors())
        store.write_manifest()
    return complete(store, posterior, data, interval=interval, progress=progress)


def complete(
    store: SampleStore, posterior: Posterior, data: Any, *, interval: CheckpointInterval, progress: bool
) -> Fit:
    """Train the members, from where that was left."""
    settings, approximation = store.manifest["settings"], read_approximation(store.manifest["method"])
    assert isinstance(approximation, DeepEnsemble)
    loader = isinstance(data, torch.utils.data.DataLoader)
    batches = as_batches(data, None if loader else 1, settings["seed"], device_of(posterior))
    with resumable_stages(store), store.writing(), checks.preserve_rng_state():
        warm = run_warm_start(
            posterior,
            DataParts.of(data, batches, settings["seed"]),
            approximation.members,
            seed=settings["seed"],
            mode="auto",
            batch_size=settings["batch_size"],
            stores=StageStores(store.path),
            interval=interval,
            progress=progress,
        )
        for number, (weights, loss) in enumerate(zip(warm.weights, warm.losses, strict=True), 1):
            store.add(0, number, weights, {"loss": loss})
        store.manifest["example_gradients"] = approximation.members * warm.example_gradients
        store.flush()
        store.write_manifest()
    return Fit(store, Predictor(posterior.model, posterior.likelihood))


def is_unfinished(store: SampleStore) -> bool:
    """Whether the members of a deep ensemble are not complete."""
    method = store.manifest.get("method")
    return isinstance(method, dict) and method.get("name") == DeepEnsemble.__name__ and not store.records()

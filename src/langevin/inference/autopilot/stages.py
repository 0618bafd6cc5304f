"""The stages of the autopilot: each has a store of its own, and advances in legs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from langevin.inference.callbacks import Callbacks
from langevin.inference.chains import Weights
from langevin.inference.engine import Engine
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.storage import manifest as manifests
from langevin.storage.base import Checkpoint, SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore

FOLDER = "stages"
_NEW = ("seed", "step", "evaluations")  # of a parameter group, when a sampler goes on in another stage


@dataclass
class StageStores:
    """Where the stores of stages are: below the directory of the run, or in memory."""

    path: Path | None
    _stores: dict[str, SampleStore] = field(default_factory=dict)

    def find(self, name: str) -> SampleStore | None:
        """The store of a stage that has begun."""
        if self.path is None or name in self._stores:
            return self._stores.get(name)
        folder = self.path / FOLDER / name
        if not manifests.exists(folder):
            return None
        self._stores[name] = DirectoryStore.open(folder)
        return self._stores[name]

    def create(self, name: str, manifest: dict[str, Any]) -> SampleStore:
        """A new store for a stage."""
        made: SampleStore
        if self.path is None:
            made = MemoryStore(manifest)
        else:
            (self.path / FOLDER).mkdir(exist_ok=True)
            made = DirectoryStore.create(self.path / FOLDER / name, manifest)
        self._stores[name] = made
        return made


def settings_of(chains: int, seed: int, batch_size: Any, **others: Any) -> RunSettings:
    """Of a stage at its beginning; its legs set the steps."""
    common: dict[str, Any] = {"burn_in": 0, "thin": 0, "phase": 0, "mode": "sequential", "freeze": True}
    common |= {"grad_accumulation_steps": 1, "autocast": None, "measure_temperature": False}
    return RunSettings(**{"steps": 1, **common, **others}, chains=chains, seed=seed, batch_size=batch_size)


def begin(engine: Engine, store: SampleStore, fixed: Mapping[str, Tensor], starts: Mapping[int, Weights]) -> None:
    """Write what a stage starts with; the manifest last."""
    store.write_fixed(fixed)
    engine.save_starts(store, starts)
    store.write_manifest()


def advance(
    engine: Engine,
    store: SampleStore,
    until: int,
    *,
    title: str,
    callbacks: Callbacks = (),
    progress: bool = False,
    interval: CheckpointInterval,
) -> None:
    """One leg: take every chain to this step."""
    engine.settings = replace(engine.settings, steps=until)
    engine.title = title
    if store.manifest["settings"] != asdict(engine.settings):
        store.manifest["settings"] = asdict(engine.settings)
        store.write_manifest()
    engine.run(store, callbacks, progress, interval)


def hand_over(
    engine: Engine,
    store: SampleStore,
    checkpoints: Mapping[int, Checkpoint],
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Let chains of another stage be those of this store, at step 0, with `changes` of their parameter groups."""
    for group in engine.groups(dict.fromkeys(checkpoints, 0)):
        store.write_checkpoint({chain: _handed_over(checkpoints[chain], changes or {}) for chain in group})


def _handed_over(checkpoint: Checkpoint, changes: Mapping[str, Any]) -> Checkpoint:
    """A chain as it is, to be the start of another stage: its weights and the sampler's state, no step taken."""
    kept = ("weights/", "state/", "precision/")
    tensors = {name: t for name, t in checkpoint.tensors.items() if name.startswith(kept)}
    groups = [
        {k: v for k, v in group.items() if k not in _NEW} | dict(changes) for group in checkpoint.values["groups"]
    ]
    values = {"groups": groups, "state": checkpoint.values["state"], "position": checkpoint.values["position"]}
    return Checkpoint(0, tensors, values)


def weights_of(store: SampleStore, chains: int) -> list[dict[str, Tensor]]:
    """The weights of every chain at its checkpoint."""
    names = store.manifest["tensors"]
    return [weights_at(checkpoint, names) for checkpoint in store.checkpoints(range(chains))]


def weights_at(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, Tensor]:
    """The weights of a chain."""
    return {name: checkpoint.tensors[f"weights/{name}"] for name in names}


def evaluations(checkpoints: Iterable[Checkpoint]) -> int:
    """Gradients of a batch that chains have taken in their stage: a full-batch sampler counts them, others take one."""
    return sum(checkpoint.values["groups"][0].get("evaluations", checkpoint.step) for checkpoint in checkpoints)

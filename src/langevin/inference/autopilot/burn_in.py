"""Burn-in: chains move away from their optima until losses and predictions are stationary; then all that adapts is
frozen.

It is looked at after lengths that double: it is over when the last two windows, of which the second is twice as long,
do not differ (see `stationary`), or when its share of the budget is spent, which is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.core.posterior import Posterior
from langevin.inference.autopilot import stages
from langevin.inference.autopilot.evaluate import Evaluation
from langevin.inference.autopilot.stages import StageStores
from langevin.inference.autopilot.stationary import Drift, drifts
from langevin.inference.engine import Engine
from langevin.inference.manifest import inputs_of, make_manifest
from langevin.inference.monitor import Monitor
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.storage.base import Checkpoint, SampleStore

_WATCHED = 64  # times in the first leg
_PREDICTIONS = 4  # random combinations of outputs


@dataclass(frozen=True)
class BurnIn:
    """Frozen chains, and how burn-in ended."""

    checkpoints: dict[int, Checkpoint]
    steps: int
    settled: bool
    found: str
    mode: str
    compiled: bool


def run_burn_in(
    engine: Engine,
    posterior: Posterior,
    evaluation: Evaluation,
    starts: Mapping[int, Mapping[str, Tensor]],
    *,
    name: str,
    compile: bool | None,
    first: int,
    most: int,
    stores: StageStores,
    interval: CheckpointInterval,
    progress: bool,
) -> BurnIn:
    """Legs that double from `first` up to `most` steps."""
    engine.monitor = Monitor(_watcher(evaluation, engine.settings.seed), max(1, first // _WATCHED))
    store = stores.find(name)
    if store is None:
        engine.choose_mode(engine.settings.mode, list(starts.values()), compile)
        store = stores.create(name, make_manifest(engine, posterior, inputs=inputs_of(engine.batches)))
        store.manifest["looks"] = []
        with store.writing():
            stages.begin(engine, store, posterior.fixed_tensors(), starts)
    else:
        engine.settings = RunSettings(**store.manifest["settings"])
    lengths = _lengths(first, most)
    with store.writing():
        for leg in range(len(store.manifest["looks"]), len(lengths)):
            if leg and store.manifest["looks"][-1]["settled"]:
                break
            stages.advance(engine, store, lengths[leg], title="burn-in", progress=progress, interval=interval)
            _look(store, engine, lengths[leg])
        frozen = _frozen(engine, store)
    looks = store.manifest["looks"]
    last, settings = looks[-1], engine.settings
    return BurnIn(frozen, lengths[len(looks) - 1], last["settled"], last["found"], settings.mode, settings.compile)


def _lengths(first: int, most: int) -> list[int]:
    lengths = [min(first, most)]
    while 2 * lengths[-1] <= most:
        lengths.append(2 * lengths[-1])
    return lengths


def _look(store: SampleStore, engine: Engine, steps: int) -> None:
    """Record whether the last two windows differ."""
    assert engine.monitor is not None
    series = {chain: c.values["watched"] for chain, c in _checkpoints(store, engine).items()}
    found = drifts(series, steps)
    worst = max(found, key=_relative)
    settled = all(drift.settled for drift in found)
    store.manifest["looks"].append({"steps": steps, "settled": settled, "found": str(worst)})
    store.write_manifest()


def _relative(drift: Drift) -> float:
    return abs(drift.change) / max(2 * drift.error, drift.negligible, 1e-300)


def _checkpoints(store: SampleStore, engine: Engine) -> dict[int, Checkpoint]:
    chains = range(engine.settings.chains)
    return dict(zip(chains, store.checkpoints(chains), strict=True))


def _frozen(engine: Engine, store: SampleStore) -> dict[int, Checkpoint]:
    """Every chain as it is, with what adapts frozen."""
    found: dict[int, Checkpoint] = {}
    for group in engine.groups(store.checkpoint_steps()):
        chains = engine.restored(store, group)
        chains.freeze()
        for index, number in enumerate(group):
            found[number] = chains.checkpoint(index, {})
    return found


def _watcher(evaluation: Evaluation, seed: int):  # type: ignore[no-untyped-def]
    """The mean log-likelihood, and a few random combinations of outputs, of each set of weights."""
    combinations: list[Tensor] = []

    def watch(stacked: Mapping[str, Tensor]) -> list[list[float]]:
        outputs, log_probs = evaluation(stacked)
        flat = outputs.reshape(len(outputs), -1).double()
        if not combinations:
            generator = torch.Generator().manual_seed(seed % 2**63)
            signs = torch.randint(2, (flat.shape[1], _PREDICTIONS), generator=generator, device="cpu").double() * 2 - 1
            combinations.append(signs / math.sqrt(flat.shape[1]))
        columns = torch.cat([log_probs.double().mean(1, keepdim=True), flat @ combinations[0]], 1)
        rows: list[list[float]] = columns.tolist()
        return rows

    return watch

"""Creating a store and holding it for writing, by one process or by several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from langevin.core.progress import tqdm
from langevin.inference import checks, distributed
from langevin.inference.engine import Engine
from langevin.inference.settings import RunSettings
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore


@contextmanager
def started(
    engine: Engine,
    out: str | Path | None,
    manifest: dict[str, Any],
    fixed: Mapping[str, Tensor],
    starts: dict[int, dict[str, Tensor]],
    announce: tuple[str, str] | None,
) -> Iterator[SampleStore]:
    """A new store with fixed tensors and starts in it, held for writing.

    `announce`: why the mode was chosen, and a remark on the starts. The starts are taken out of memory: chains read
    theirs from the store when their turn comes.
    """
    place = engine.place

    def create() -> SampleStore:
        store: SampleStore = MemoryStore(manifest) if out is None else DirectoryStore.create(out, manifest)
        checks.refuse_if_too_large(store, engine.settings)
        return store

    def begin(store: SampleStore) -> None:
        store.write_fixed(fixed)
        if engine.control is not None:
            store.write_fixed(engine.control.tensors(), "control_variate")
        engine.save_starts(store, starts)
        store.write_manifest()  # last: a directory with a manifest is a run that can continue
        if announce is not None:
            _announce(store, engine.settings, *announce)

    with held(place, engine.settings.chains, create, begin) as store:
        starts.clear()
        yield store


@contextmanager
def held(
    place: distributed.Place, chains: int, opened: Callable[[], SampleStore], change: Callable[[SampleStore], None]
) -> Iterator[SampleStore]:
    """Let one process change the run as a whole; then every one holds the chains that it writes."""
    if place.alone:
        store = opened()
        with store.writing():
            change(store)
            yield store
        return

    def lead() -> str:
        store = opened()
        with store.writing():
            change(store)
        return store.name

    store = DirectoryStore.open(place.first(lead))
    with store.writing(place.chains_of(chains)) if place.writes else nullcontext():
        yield store


def _announce(store: SampleStore, settings: RunSettings, why: str, remark: str) -> None:
    chains = (
        "1 chain" if settings.chains == 1 else f"{settings.chains} chains, {settings.mode} ({why or 'as requested'})"
    )
    what, saved = (chains, "samples") if settings.measure_temperature else (f"{settings.steps} steps", "snapshots")
    size = checks.human_size(checks.stored_size(store, settings))
    count = settings.samples_per_chain() * settings.chains
    tqdm.write(f"{what}; {count} {saved}, {size}, in {store.name}", sys.stderr)
    if remark:
        tqdm.write(remark, sys.stderr)

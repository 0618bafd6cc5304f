"""`langevin status`: how far a run is, read from its directory while others write it."""

from __future__ import annotations

from pathlib import Path

from langevin.core.statistics import mean_and_error
from langevin.errors import RunError
from langevin.storage import locks
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore


def describe(path: str | Path) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """What is sampled, a table of chains with a head, and remarks."""
    run = DirectoryStore.open(path)
    manifests.require(run.path, run.manifest, "settings", "sampler", "created")
    store = _stage(run)
    settings, remarks = store.manifest["settings"], []
    try:
        at = store.checkpoint_steps()
    except RunError as error:
        at, remarks = {}, [str(error)]
    beats = locks.heartbeats(store.path)
    rows: list[tuple[str, ...]] = [("chain", "step", "of", "samples", "temperature", "steps/s", "last heartbeat")]
    for chain in sorted({*at, *(record.chain for record in store.records())}):
        records = store.records(chain)
        temperature = mean_and_error([record.stats.get("temperature", float("nan")) for record in records])
        beat = next((p for p in beats if chain in p.steps), None)
        rows.append(
            (
                str(chain),
                str(max(at.get(chain, 0), beat.steps[chain] if beat and beat.alive else 0)),
                str(_number(settings, "steps")),
                str(len(records)),
                str(temperature) if records else "unknown",
                f"{beat.rate:.3g}" if beat and beat.alive else "",
                _ago(beat),
            )
        )
    remarks += [f"corrupted: {file} ({why})" for file, why in store.corrupted.items()]
    remarks += [str(gap) for gap in store.missing]
    remarks += _decisions(run.manifest)
    return _title(run, settings), rows, remarks


def _stage(run: DirectoryStore) -> DirectoryStore:
    """The stage in which a run by autopilot is, whose chains are the ones that move; else the run itself."""
    autopilot = run.manifest.get("autopilot")
    if not isinstance(autopilot, dict) or autopilot.get("stage") in ("sampling", "done"):
        return run
    begun = [file.parent for file in sorted((run.path / "stages").glob(f"*/{manifests.file(run.path).name}"))]
    newest = max(begun, key=lambda folder: manifests.file(folder).stat().st_mtime, default=None)
    if newest is None:
        return run
    stage = DirectoryStore.open(newest)
    manifests.require(stage.path, stage.manifest, "settings", "sampler", "created")
    return stage


def _decisions(manifest: dict[str, object]) -> list[str]:
    """Where a run by autopilot is, and what it decided last."""
    autopilot, tuning = manifest.get("autopilot"), manifest.get("tuning")
    if not isinstance(autopilot, dict):
        return []
    last = tuning[-1] if isinstance(tuning, list) and tuning else None
    found = [f"autopilot, stage: {autopilot.get('stage')}{_extent(autopilot)}"]
    if isinstance(last, dict):
        why = f" ({last['why']})" if last.get("why") else ""
        found.append(f"autopilot, last decision, {last.get('stage')}: {last.get('decided')}{why}")
    return found


def _extent(autopilot: dict[str, object]) -> str:
    """How far the stage can go: each leg has its own number of steps."""
    steps, most, looks = autopilot.get("steps"), autopilot.get("most"), autopilot.get("looks")
    if autopilot.get("stage") == "sampling" and isinstance(most, int):
        last = looks[-1] if isinstance(looks, list) and looks else None
        found = f", {last['ess']:.0f} effective samples so far" if isinstance(last, dict) and "ess" in last else ""
        return f", at most {most:,} steps of each chain{found}"
    if autopilot.get("stage") == "burn-in" and isinstance(steps, int):
        return f", of at most {steps:,} steps of each chain for burn-in and sampling"
    return ""


def _title(store: DirectoryStore, settings: dict[str, object]) -> str:
    recipe = store.manifest.get("method") or store.manifest["sampler"]
    name = "a custom sampler"
    if isinstance(recipe, dict) and "name" in recipe:
        options = recipe.get("options")
        given = options.items() if isinstance(options, dict) else ()
        name = f"{recipe['name']}({', '.join(f'{option}={value}' for option, value in given)})"
    return f"{name}, started {store.manifest['created']}, {settings.get('mode')}"


def _number(settings: dict[str, object], name: str) -> int:
    value = settings.get(name)
    if not isinstance(value, int):
        raise RunError(f"The manifest has {name}={value!r} in its settings; a number is expected.")
    return value


def _ago(beat: locks.Heartbeat | None) -> str:
    if beat is None:
        return ""
    state = "" if beat.alive else ", ended"
    if beat.age < 0:
        return f"{-beat.age:.0f} s ahead of this clock{state}"
    return f"{beat.age:.0f} s ago, {beat.who}{state}"

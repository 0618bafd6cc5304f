"""`langevin status`: how far a run is, read from its directory while others write it."""

from __future__ import annotations

from pathlib import Path

from langevin.core.statistics import mean_and_error
from langevin.errors import RunError
from langevin.storage import locks as writers
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore


def describe(path: str | Path) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """What is sampled, a table of chains with a head, and remarks."""
    store = DirectoryStore.open(path)
    manifests.require(store.path, store.manifest, "plan", "sampler", "created")
    plan, remarks = store.manifest["plan"], []
    try:
        at = store.checkpoint_steps()
    except RunError as error:
        at, remarks = {}, [str(error)]
    pulses = writers.pulses(store.path)
    rows: list[tuple[str, ...]] = [("chain", "step", "of", "samples", "temperature", "steps/s", "last heartbeat")]
    for chain in sorted({*at, *(record.chain for record in store.records())}):
        records = store.records(chain)
        heat = mean_and_error([record.notes.get("temperature", float("nan")) for record in records])
        pulse = next((p for p in pulses if chain in p.steps), None)
        rows.append(
            (
                str(chain),
                str(max(at.get(chain, 0), pulse.steps[chain] if pulse and pulse.alive else 0)),
                str(_number(plan, "steps")),
                str(len(records)),
                str(heat) if records else "unknown",
                f"{pulse.rate:.3g}" if pulse and pulse.alive else "",
                _ago(pulse),
            )
        )
    remarks += [f"damaged: {file} ({why})" for file, why in store.damaged.items()]
    remarks += [f"chain {c}: samples between the steps {a} and {b} are missing" for c, a, b in store.missing]
    return _title(store, plan), rows, remarks


def _title(store: DirectoryStore, plan: dict[str, object]) -> str:
    recipe = store.manifest.get("method") or store.manifest["sampler"] or {}
    options = recipe.get("options") or {}
    written = ", ".join(f"{name}={value}" for name, value in options.items()) if isinstance(options, dict) else ""
    name = f"{recipe['name']}({written})" if "name" in recipe else "a sampler of its user's"
    return f"{name}, begun {store.manifest['created']}, {plan.get('mode')}"


def _number(plan: dict[str, object], name: str) -> int:
    value = plan.get(name)
    if not isinstance(value, int):
        raise RunError(f"The plan in the manifest has {name}={value!r}; a number is expected.")
    return value


def _ago(pulse: writers.Pulse | None) -> str:
    if pulse is None:
        return ""
    state = "" if pulse.alive else ", ended"
    if pulse.age < 0:
        return f"{-pulse.age:.0f} s ahead of this clock{state}"
    return f"{pulse.age:.0f} s ago, {pulse.who}{state}"

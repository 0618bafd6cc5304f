"""Begin a run by autopilot, or continue one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from langevin.core.batches import Batches, LoaderBatches
from langevin.core.full_batches import make_batches
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.errors import RunError
from langevin.inference import checks
from langevin.inference.autopilot import stages
from langevin.inference.autopilot.autopilot import Autopilot
from langevin.inference.autopilot.budget import FEWEST_STEPS, Budget, many_examples, within_limit
from langevin.inference.autopilot.plan import Plan, choose_regime, default_chains, full_batch_sampler
from langevin.inference.autopilot.warm_start import EPOCHS, SECOND_PHASE, STEPS, default_batch_size
from langevin.inference.callbacks import Callbacks
from langevin.inference.engine import Engine
from langevin.inference.interrupt import resumable_stages
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.remarks import remark_on_data
from langevin.inference.settings import CheckpointInterval
from langevin.inference.starts import Init
from langevin.inference.steppers import SamplerLike, sampler_factory
from langevin.samplers import SAMPLERS, Sampler
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore


def make_plan(
    posterior: Posterior,
    batches: Batches,
    sampler: SamplerLike | None,
    options: Mapping[str, Any],
    *,
    chains: int | None,
    seed: int,
    mode: str,
    compile: bool | None,
    batch_size: int | Literal["full"] | None,
    budget: str | float | None,
    steps: int | None,
) -> Plan:
    """What can be decided before the first step."""
    spend = Budget.parse(budget)
    full, each, why = choose_regime(posterior, batches)
    kind = _kind(sampler) if sampler is not None else None
    if batch_size == "full":
        full, why = True, "full batches, as given"
    elif kind is not None:
        full = kind.full_batch
        why = f"{'full batches' if full else 'mini-batches'}, as {kind.__name__} takes them"
    elif batch_size is not None:
        full, why = False, "mini-batches, since batch_size is given"
    elif full and spend.times is not None:
        most = most_full_batches(batches.num_data or 1, spend.times)
        if most < FEWEST_STEPS:
            full, why = False, f"mini-batches: {spend.times:g} times the warm start are at most {most} full ones"
    name = kind.__name__ if kind is not None else full_batch_sampler(posterior) if full else "SGHMC"
    if kind is None and not full and batch_size is None and not isinstance(batches, LoaderBatches):
        batch_size = default_batch_size(batches.num_data or 1)  # that of the warm start
    options = dict(options)
    if isinstance(options.get("temperature"), list | tuple):
        raise ValueError(
            f'temperature={options["temperature"]!r}: the autopilot takes one temperature, or "auto". Chains have '
            f"temperatures of their own where sampler, lr and steps are given: lv.sample(posterior, data, lv.SGHMC, "
            f"lr=1e-3, steps=10_000, temperature=[1, 0.3])."
        )
    if isinstance(given := options.get("temperature"), str) and given != "auto":
        raise ValueError(f'temperature={given!r}: give a number, such as 1, or "auto".')
    return Plan(
        sampler=name,
        options=options,
        full_batch=full,
        chains=default_chains(full) if chains is None else chains,
        seed=seed,
        mode=mode,
        compile=compile,
        batch_size=None if batch_size == "full" else batch_size,
        temperature=options.get("temperature", 1.0),
        seconds=spend.seconds,
        pace=None,
        gradients=spend.gradients,
        times=spend.times,
        most_steps=spend.steps,
        steps=steps,
        multiply_adds=each,
        many_examples=many_examples(posterior),
        why=why,
    )


def most_full_batches(num_data: int, times: float) -> int:
    """Steps with full batches, two gradients each, for a multiple of the longest warm start."""
    warm = SECOND_PHASE * max(STEPS * default_batch_size(num_data), EPOCHS * num_data)
    return int(times * warm / (SAMPLERS.named("MAMS").gradients_per_step * num_data))


def begin(
    posterior: Posterior,
    data: Any,
    plan: Plan,
    chains_given: bool,
    regime_given: bool,
    *,
    out: str | Path | None,
    callbacks: Callbacks,
    progress: bool,
    interval: CheckpointInterval,
    sample_dtype: torch.dtype | None,
    keep_last: int | None,
    tags: Mapping[str, Any] | None,
    init: Init = None,
    since: float | None = None,
) -> SampleStore:
    """A new run, from the first stage to the last; its time counts from `since`, of `time.perf_counter()`."""
    refuse_incompatible_layers(posterior)
    if plan.temperature == "auto" and posterior.precisions.priors:
        raise ValueError(
            'temperature="auto" tries temperatures below 1, where sampled prior scales shrink, and the weights with '
            "them, whatever the data say. Give temperature=1, or a prior of fixed scales: lv.priors.Gaussian(1.0)."
        )
    size: Any = "full" if plan.full_batch else plan.batch_size
    batches = make_batches(data, size, plan.seed, device_of(posterior))
    checks.check_data(posterior, batches, plan.seed)
    remark_on_data(posterior, batches, stacklevel=5)
    with checks.preserve_rng_state():
        given = {"chains_given": chains_given, "regime_given": regime_given}
        plan = within_limit(copy.deepcopy(posterior), data, plan, **given, since=since)
    size = "full" if plan.full_batch else plan.batch_size
    batches = make_batches(data, size, plan.seed, device_of(posterior))
    settings = stages.settings_of(plan.chains, plan.seed, size, thin=1, measure_temperature=True)
    known = {"temperature": 1.0, "lr": 1e-3} if plan.temperature == "auto" or not plan.full_batch else {}
    options = {name: value for name, value in plan.options.items() if value != "auto"}
    make = sampler_factory(plan.sampler, known | options)  # what is not known yet is written down when it is
    engine = Engine(posterior, batches, make, None, settings)
    manifest = make_manifest(
        engine, posterior, inputs=inputs_of(batches), sample_dtype=sample_dtype, keep_last=keep_last, tags=tags
    )
    manifest |= {"autopilot": {"plan": plan.entries(), "stage": "warm start"}, "tuning": []}
    store: SampleStore = MemoryStore(manifest) if out is None else DirectoryStore.create(out, manifest)
    with resumable_stages(store), store.writing(), checks.preserve_rng_state():
        store.write_fixed(posterior.fixed_tensors())
        store.write_manifest()
        pilot = Autopilot(posterior, data, plan, store, callbacks, progress, interval, init)
        pilot.decide_plan()
        pilot.run()
    return store


def go_on(
    store: SampleStore,
    posterior: Posterior,
    data: Any,
    *,
    callbacks: Callbacks,
    progress: bool,
    interval: CheckpointInterval,
) -> None:
    """Continue a run from the stage in which it was left."""
    plan = Plan.of_manifest(store.manifest["autopilot"]["plan"])
    with resumable_stages(store), store.writing(), checks.preserve_rng_state():
        Autopilot(posterior, data, plan, store, callbacks, progress, interval).run()


def refuse_another_plan(path: str | Path, plan: Plan, *, chains: bool, sampler: bool, batch_size: bool) -> None:
    """Raise if a repeated call finds another run than it describes, by what was given."""
    manifest = DirectoryStore.open(path).manifest
    if "autopilot" not in manifest:
        raise RunError(f"{path} contains a run that is not by autopilot. Choose another directory: out='{path}-2'.")
    its = Plan.of_manifest(manifest["autopilot"]["plan"])
    compared = {"seed": "seed", "steps": "steps", "temperature": "temperature", "options": "options of the sampler"}
    compared |= dict.fromkeys(("seconds", "gradients", "times", "most_steps"), "budget")
    given = {"chains": chains, "sampler": sampler, "batch_size": batch_size, "full_batch": batch_size}
    compared |= {name: name for name, was in given.items() if was}
    for name, word in compared.items():
        if (mine := getattr(plan, name)) != (found := getattr(its, name)):
            mine, found = (plan.budget, its.budget) if word == "budget" else (mine, found)
            raise RunError(
                f"{path} contains another run: its {word} is {found}, given {mine}. Choose another directory: "
                f"out='{path}-2'; or continue it as it is: lv.resume('{path}', posterior, data)."
            )


def refuse_extension(manifest: Mapping[str, Any], steps: int | None, chains: int | None) -> None:
    """Raise for what a finished run by autopilot can't be extended by; nothing for other runs."""
    if "autopilot" not in manifest:
        return
    if chains is not None and chains != manifest["settings"]["chains"]:
        raise RunError(
            f"The chains of a run by autopilot have a warm start and a burn-in of their own, so none can be added: "
            f"given chains={chains}. Sample again: lv.sample(posterior, data, chains={chains})."
        )
    if steps is not None and manifest["autopilot"]["plan"]["temperature"] == "auto":
        raise RunError(
            f'With temperature="auto" some of the data were kept out, so the run can\'t be extended with all: given '
            f"steps={steps}. Sample again with a larger budget."
        )


def is_unfinished(manifest: Mapping[str, Any]) -> bool:
    """Whether a run by autopilot has stages before it."""
    found = manifest.get("autopilot")
    return isinstance(found, dict) and found.get("stage") != "done"


def _kind(sampler: SamplerLike) -> type[Sampler]:
    kind = SAMPLERS.named(sampler) if isinstance(sampler, str) else sampler
    if isinstance(kind, type) and issubclass(kind, Sampler):
        return kind
    raise ValueError(
        f"Without lr the autopilot adapts a sampler of the library, lv.sample(posterior, data, lv.ATMC); given "
        f"{sampler!r}. Give lr and steps to sample with your own."
    )

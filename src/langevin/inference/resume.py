"""`resume`: continue a run or a fit from its last checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from langevin.approximations import Approximation, Reparameterized
from langevin.core.arguments import COUNT, DURATION, validated
from langevin.core.full_batches import make_batches
from langevin.core.objective import Objective
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.ensembles.fit import Fit, read_approximation
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.inference import checks, distributed, fit_ensemble
from langevin.inference.autopilot.begin import go_on, is_unfinished, refuse_extension
from langevin.inference.callbacks import Callbacks
from langevin.inference.conclude import autopilot_probe, concluded, probe_inputs
from langevin.inference.control_variate import ControlVariate
from langevin.inference.distributed import Mesh
from langevin.inference.engine import Engine
from langevin.inference.environment import environment
from langevin.inference.manifest import device_of, timestamp
from langevin.inference.open_store import held
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.starts import Init, starting_points
from langevin.inference.steppers import (
    OptimizerFactory,
    SamplerLike,
    SchedulerFactory,
    StepperFactory,
    read_recipe,
    sampler_factory,
)
from langevin.storage import manifest as manifests
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.files import dtype_of


@validated(steps=COUNT, chains=COUNT, checkpoint_steps=COUNT, checkpoint_seconds=DURATION)
def resume(
    run: str | Path | Run | Fit,
    posterior: Posterior,
    data: Any,
    *,
    steps: int | None = None,
    chains: int | None = None,
    sampler: SamplerLike | None = None,
    optimizer: Callable[..., Optimizer] | None = None,
    schedule: SchedulerFactory | None = None,
    init: Init = None,
    device: torch.device | str | None = None,
    callbacks: Callbacks = (),
    progress: bool = True,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 30.0,
    mesh: Mesh | str | None = None,
) -> Run | Fit:
    """Continue a run or a fit from its last checkpoint.

    It continues exactly as if it had never stopped: the samples are bit for bit those of an uninterrupted run in the
    same environment, and a difference of environment is warned of.

    Args:
        run: the directory, or a run or fit in memory.
        posterior: what was sampled.
        data: the training data, the same as before.
        steps: the new total; by default as many as were planned.
        chains: the new total, to add chains; they start at `init` and are those of a run that had so many from the
            beginning.
        sampler: needed again only if it was not serializable (a function of yours).
        optimizer: of a fit, likewise.
        schedule: likewise.
        init: where added chains start, as in `sample`.
        device: where to compute; by default where the model is.
        callbacks: functions that get a `StepInfo` after every step.
        progress: show a progress bar.
        checkpoint_steps: write a checkpoint every so many steps.
        checkpoint_seconds: and at least that often.
        mesh: as in `sample`; the processes need not be as many as before.
    """
    checks.check_posterior(posterior)
    store = _store_of(run)
    manifest = store.manifest
    if manifest.get("recorded"):
        raise RunError(
            f"The run in {store.name} was recorded by a Recorder, or is a part of another run: it can't be resumed."
        )
    if store.path is not None and manifest.get("format") != manifests.FORMAT:
        raise RunError(
            f"The run in {store.name} was written by an earlier version, whose random numbers were others: it can be "
            f"read and predicted with, but not continued. Sample again, or start from its last samples: init=run."
        )
    if isinstance(run, Run) and not run.is_whole:
        raise ValueError(
            f"A part of a run can't be resumed: given {len(run)} of {store.saved()} samples. Resume the whole run."
        )
    if store.path is not None:
        manifests.require(store.path, manifest)
    if is_unfinished(manifest):
        return _by_autopilot(store, posterior, data, steps, chains, device, callbacks, progress, checkpoint_seconds)
    if fit_ensemble.is_unfinished(store):
        posterior = copy.deepcopy(posterior)
        distributed.place_posterior(posterior, None, 1, device)
        checks.check_same(store, posterior, posterior, make_batches(data, None, 0, device_of(posterior)))
        load_tensors(posterior, store.fixed())
        interval = CheckpointInterval(checkpoint_steps, checkpoint_seconds)
        return fit_ensemble.complete(store, posterior, data, interval=interval, progress=progress)
    refuse_extension(manifest, steps, chains)
    before = read_settings(store)
    settings = _extended(before, steps, chains)
    posterior = copy.deepcopy(posterior)
    approximation = read_approximation(manifest["method"]) if "method" in manifest else None
    place = distributed.place_posterior(posterior, mesh, settings.chains, device)
    interval = CheckpointInterval(checkpoint_steps, checkpoint_seconds)
    original = copy.deepcopy(posterior) if approximation is not None else posterior
    objective: Objective = posterior
    given: StepperFactory | None = None if sampler is None else sampler_factory(sampler)
    if approximation is not None:
        if sampler is not None or init is not None or chains not in (None, 1):
            raise ValueError(
                f"{store.name} is a fit, not a run: it has an optimizer. Leave out sampler=, init= and chains=."
            )
        _check_fit(store, approximation, before, steps)
        given = approximation.stepper(posterior) if optimizer is None else OptimizerFactory(optimizer)
        objective = approximation.objective(posterior)
    elif optimizer is not None:
        raise ValueError(f"{store.name} is a run, not a fit: it has a sampler. Leave out optimizer=….")
    batches = make_batches(data, settings.batch_size, settings.seed, device_of(posterior))
    checks.check_same(store, objective, original, batches)
    option = "sampler" if approximation is None else "optimizer"
    checks.check_same_stepper(store, given, schedule, option)
    make_scheduler = schedule or (None if manifest["schedule"] is False else _known(store, "schedule", "schedule"))
    control = None
    if manifest.get("control_variate"):
        control = ControlVariate.of_tensors(store.fixed("control_variate"), device_of(posterior))
    make_stepper = given or _known(store, "sampler", option)
    engine = Engine(objective, batches, make_stepper, make_scheduler, settings, place, control)
    try:
        if approximation is None:
            checks.check_sampler(engine.probe, original, settings, make_scheduler, batches, place, store.path)
        else:
            checks.check_schedule(make_scheduler, engine.probe, settings, batches)
    except (TypeError, OverflowError, AttributeError) as error:
        raise RunError(
            f"The sampler or the schedule of {store.name} can't be made with its options: {error}."
        ) from error
    checks.refuse_if_too_large(store, settings)
    checks.warn_of_gaps(store)
    load_tensors(original, store.fixed())
    if original is not posterior:
        load_tensors(posterior, store.fixed())
    starts = starting_points(init, range(before.chains, settings.chains), original, settings.seed)
    with checks.preserve_rng_state():
        batches.exact_resume = batches.exact_resume and checks.is_repeatable(batches)
        inputs = None if approximation is not None else probe_inputs(original, batches)
    here = environment(device_of(original)) | {"replicas": place.mesh.data, "repeatable_data": batches.exact_resume}
    checks.warn_of_differences(manifest["environment"], here, batches)
    predictor = None if approximation is None else Predictor(original.model, original.likelihood)

    def amend(store: SampleStore) -> None:
        store.refresh()  # another process may have written since
        if starts:
            store.drop_checkpoints(starts)  # of an attempt to add chains that failed
            engine.save_starts(store, starts)
            starts.clear()
        store.manifest["settings"] = asdict(settings)
        store.manifest["resumed"].append({"at": timestamp(), "environment": here})
        store.write_manifest()

    with checks.preserve_rng_state(), held(place, settings.chains, lambda: store, amend) as store:
        engine.run(store, callbacks, progress, interval)
    if not place.alone:
        place.wait_for_all()
        store.refresh()
    if predictor is not None:
        return finished_fit(store, predictor, original, data)
    return concluded(store, original, inputs, place, progress)


def _by_autopilot(
    store: SampleStore,
    posterior: Posterior,
    data: Any,
    steps: int | None,
    chains: int | None,
    device: torch.device | str | None,
    callbacks: Callbacks,
    progress: bool,
    checkpoint_seconds: float,
) -> Run:
    """Continue a run that chooses for itself."""
    if steps is not None or chains is not None:
        raise ValueError(
            f"The run in {store.name} by autopilot is not complete, so it can't be extended yet: leave out steps= and "
            f"chains= at first."
        )
    posterior = copy.deepcopy(posterior)
    distributed.place_posterior(posterior, None, 1, device)
    settings = read_settings(store)
    batches = make_batches(data, settings.batch_size, settings.seed, device_of(posterior))
    checks.check_same(store, posterior, posterior, batches)
    load_tensors(posterior, store.fixed())
    here = environment(device_of(posterior)) | {"replicas": 1, "repeatable_data": batches.exact_resume}
    checks.warn_of_differences(store.manifest["environment"], here, batches)
    store.manifest["resumed"].append({"at": timestamp(), "environment": here})
    go_on(
        store,
        posterior,
        data,
        callbacks=callbacks,
        progress=progress,
        interval=CheckpointInterval(None, checkpoint_seconds),
    )
    return concluded(store, posterior, autopilot_probe(posterior, data, settings.seed), distributed.ALONE, progress)


def _store_of(run: str | Path | Run | Fit) -> SampleStore:
    """Where the run is; what is on disk is read again, since another process may have changed it."""
    if isinstance(run, Run | Fit):
        return run.store if run.path is None else DirectoryStore.open(run.path)
    if not isinstance(run, str | Path):
        raise ValueError(f"Give the directory of the run, or a run in memory; given {type(run).__name__}.")
    return DirectoryStore.open(run)


def finished_fit(store: SampleStore, predictor: Predictor, posterior: Posterior, data: Any) -> Fit:
    """The fit in a store, with the BatchNorm statistics of its draws."""
    fit = Fit(store, predictor)
    if fit.manifest["buffers"]:
        fit.reestimate(posterior, data)
    return fit


def read_settings(store: SampleStore) -> RunSettings:
    """The settings in a manifest, which may have been written by anyone."""
    try:
        settings = RunSettings(**store.manifest["settings"])
        if settings.mode not in ("vectorised", "sequential"):
            raise ValueError(f"mode={settings.mode!r}")
        if settings.autocast is not None:
            dtype_of(settings.autocast)
    except (TypeError, ValueError) as error:
        raise RunError(f"The manifest of {store.name} has no valid settings: {error}") from None
    return settings


def _extended(settings: RunSettings, steps: int | None, chains: int | None) -> RunSettings:
    if chains is not None and chains < settings.chains:
        raise ValueError(f"chains can't shrink: the run has {settings.chains}, given chains={chains}.")
    if steps is not None and steps < settings.steps:
        raise ValueError(
            f"steps is the new total and can't shrink: {settings.steps} were planned, given steps={steps}."
        )
    return replace(settings, steps=steps or settings.steps, chains=chains or settings.chains)


def _check_fit(store: SampleStore, approximation: Approximation, settings: RunSettings, steps: int | None) -> None:
    """What takes no steps is complete; of a variational fit the last step has to be a snapshot."""
    if not approximation.takes_steps:
        kind = type(approximation).__name__
        raise RunError(f"{store.name} is a fit of {kind}, which is complete: there is nothing to continue.")
    if isinstance(approximation, Reparameterized) and steps and not settings.saves(steps):
        fitting = steps + (settings.phase - steps) % settings.thin
        raise ValueError(
            f"steps={steps} would end between two snapshots, {settings.thin} apart; write steps={fitting}."
        )


def _known(store: SampleStore, entry: str, option: str) -> Callable[..., Any]:
    """The factory that the manifest names, which the user may give by that option."""
    if store.manifest[entry] is None:
        raise RunError(
            f"The {option} of {store.name} was not serializable; give it again: lv.resume({store.name!r}, posterior, "
            f"data, {option}=…)."
        )
    try:
        return read_recipe(store.manifest[entry])
    except ValueError as error:
        raise RunError(f"The {option} of {store.name} is not known: {error}") from None

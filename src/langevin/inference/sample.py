"""`sample`: draw samples of a posterior."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from langevin.core.arguments import COUNT, DURATION, NATURAL, SEED, validated
from langevin.core.batches import Batches
from langevin.core.full_batches import make_batches
from langevin.core.posterior import Posterior
from langevin.core.schedules import cyclical
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.inference import checks, distributed
from langevin.inference.autopilot.begin import begin, make_plan, refuse_another_plan
from langevin.inference.callbacks import Callbacks
from langevin.inference.conclude import autopilot_probe, concluded, probe_inputs
from langevin.inference.control_variate import ControlVariate
from langevin.inference.distributed import Mesh, Place
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.open_store import started
from langevin.inference.probe import can_probe
from langevin.inference.remarks import remark_on_data
from langevin.inference.resume import read_settings
from langevin.inference.resume import resume as resume_run
from langevin.inference.sample_options import chain_temperatures, lacks_rate, refuse_without_sampler
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.starts import Init, load_fixed, remark_on_starts, starting_points
from langevin.inference.steppers import SamplerLike, SchedulerFactory, full_batch_or, sampler_factory
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore


@validated(
    steps=COUNT,
    burn_in=NATURAL,
    thin=COUNT,
    chains=COUNT,
    seed=SEED,
    batch_size=COUNT,
    grad_accumulation_steps=COUNT,
    checkpoint_steps=COUNT,
    checkpoint_seconds=DURATION,
    keep_last=COUNT,
)
def sample(
    posterior: Posterior,
    data: Any,
    sampler: SamplerLike | None = None,
    *,
    steps: int | None = None,
    budget: str | float | None = None,
    batch_size: int | Literal["full"] | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    schedule: SchedulerFactory | None = None,
    chains: int | None = None,
    seed: int = 0,
    init: Init = None,
    control_variate: Mapping[str, Tensor] | Literal["map"] | None = None,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    mode: Literal["auto", "vectorised", "sequential"] = "auto",
    freeze: bool = True,
    autocast: torch.dtype | None = None,
    grad_accumulation_steps: int = 1,
    compile: bool | None = None,
    probe: float = 0.02,
    callbacks: Callbacks = (),
    progress: bool = True,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 30.0,
    sample_dtype: torch.dtype | None = None,
    keep_last: int | None = None,
    tags: Mapping[str, Any] | None = None,
    mesh: Mesh | str | None = None,
    resume: Literal["auto"] | None = None,
    **options: Any,
) -> Run:
    """Draw samples of the posterior. The posterior's own model is left as it is.

    `lv.sample(posterior, data)` chooses, adapts and stops by itself (docs/autopilot.md): a warm start for every chain,
    a sampler, its rate, the length of burn-in and of the run. `run.tuning` says what was decided and why. With a
    sampler, its lr and `steps` everything is as given.

    Args:
        posterior: what to sample.
        data: the training data: tensors (x, y), a map-style data set, or a DataLoader.
        sampler: a sampler class or its name, with its options beside it: `lv.sample(posterior, data, lv.SGLD, lr=1e-2,
            steps=1000)`. N, seed and chain are filled in. A `partial` works too. Without it, or without its lr, the
            autopilot chooses.
        steps: steps of each chain in all, burn-in included; without lr, those after burn-in, or until it is enough.
        budget: how much the autopilot may spend: a time ("10 min") or gradients of single examples ("1e6 gradients") in
            all, or after the warm start steps ("5000 steps") or a multiple of its gradients ("5x"; by default "20x").
        batch_size: examples per step (128); with a DataLoader it is the loader's. "full" is all data in every step, in
            memory once for all chains: what MCLMC and HMC need and have by default.
        burn_in: steps before the first sample (a quarter of all); adaptive samplers are frozen at its end.
        thin: steps from one sample to the next; by default the cycle of a cyclical schedule, else such that a chain
            saves about a hundred.
        schedule: a function from a sampler to a torch scheduler, or `lv.cyclical(length)`.
        chains: independent chains: 1, or as many as the autopilot finds fit.
        seed: random seed; what is drawn is a function of it, the chain and the step.
        init: where chains start: a state dict such as `lv.find_map(…)` returns, the last samples of another run, a
            function from a chain's number to a state dict, or "model", the model's weights. By default the first chain
            starts at the model's weights and every other one at a fresh initialization (the layers'
            `reset_parameters`), so that R̂ compares chains that started apart.
        control_variate: reduce mini-batch noise by the gradients at this point, a state dict near the mode, such as
            `lv.find_map(…)` returns; `"map"` finds it first. g(θ) − g(point) on the batch plus the gradient of all
            data at the point, for any sampler. A step then takes two gradients.
        device: where to compute; by default where the model is.
        out: the directory of the run. Without one, the run is in memory; `run.save(path)` writes it.
        mode: "vectorised" (chains as one computation), "sequential", or "auto": a short trial decides.
        freeze: whether adaptive preconditioners stop adapting at the end of burn-in, so that the target is exact.
        autocast: compute the loss in this precision (`torch.bfloat16`).
        grad_accumulation_steps: compute each batch in so many parts, to save memory.
        compile: compile the loss and its gradient with `torch.compile`, which takes a C++ compiler and some seconds. By
            default vectorised chains are, if the run is long enough to pay for it and a trial finds it faster.
        probe: the share of the gradient evaluations after burn-in that may be spent on the gradient thermometer
            (`run.gradient_temperature()`), on top of the run's own; 0 for none. A DataLoader has none.
        callbacks: functions that get a `StepInfo` after every step.
        progress: show a progress bar and, at the end, the verdict on the run (`run.verdict()`). A bad one is warned of
            in any case.
        checkpoint_steps: write a checkpoint every so many steps.
        checkpoint_seconds: and at least that often.
        sample_dtype: store samples in this precision (`torch.float16`), to save space.
        keep_last: keep only the last so many samples of each chain.
        tags: anything of yours, JSON-serializable, to be stored in the manifest.
        mesh: how the processes that torchrun launched share the work, "chains=2,data=2"; by default as many as divide
            the chains have chains of their own, and the rest share the batches. Callbacks are called in each.
        resume: "auto" continues the run if `out` contains this very run already, so that a command which is simply
            repeated (by torchrun, Slurm, Kubernetes) continues.
        options: the sampler's options. `temperature=[1, 0.3, 0.1]` gives the chains temperatures in turn; the run then
            predicts and diagnoses with the chains at the first, and `run.at_temperature(0.3)` with others.
    """
    if not (isinstance(probe, int | float) and 0 <= probe < 1):
        raise ValueError(f"probe={probe!r}: give a share of the gradient evaluations, such as 0.02, or 0 for none.")
    checks.check_posterior(posterior)
    if sampler is None:
        refuse_without_sampler(options, steps, inspect.signature(sample).parameters)
    if sampler is None or steps is None or lacks_rate(sampler, options):
        refused: dict[str, Any] = {
            "burn_in": burn_in,
            "thin": thin,
            "schedule": schedule,
            "control_variate": control_variate,
        }
        refused |= {"mesh": mesh, "autocast": autocast, "freeze": None if freeze else False}
        return _by_autopilot(
            posterior,
            data,
            sampler,
            options,
            refused | {"grad_accumulation_steps": None if grad_accumulation_steps == 1 else grad_accumulation_steps},
            steps=steps,
            budget=budget,
            batch_size=batch_size,
            chains=chains,
            seed=seed,
            init=init,
            device=device,
            out=out,
            mode=mode,
            compile=compile,
            callbacks=callbacks,
            progress=progress,
            interval=CheckpointInterval(checkpoint_steps, checkpoint_seconds),
            sample_dtype=sample_dtype,
            keep_last=keep_last,
            tags=tags,
            resume=resume,
        )
    if budget is not None:
        raise ValueError("budget is for the autopilot: leave out steps, lv.sample(posterior, data, budget='10 min').")
    temperatures = chain_temperatures(options)
    if temperatures is not None:
        options["temperature"] = temperatures[0]
        chains = len(temperatures) if chains is None else chains
    chains = 1 if chains is None else chains
    make_sampler = sampler_factory(sampler, options)
    posterior = copy.deepcopy(posterior)
    place = distributed.place_posterior(posterior, mesh, chains, device)
    batch_size = full_batch_or(batch_size, make_sampler, posterior.num_data)
    batches = make_batches(data, batch_size, seed, device_of(posterior))
    load_fixed(init, posterior)
    settings = _settings(
        steps,
        burn_in,
        thin,
        schedule,
        chains=chains,
        seed=seed,
        batch_size=batch_size,
        mode="sequential",
        freeze=freeze,
        grad_accumulation_steps=grad_accumulation_steps,
        autocast=None if autocast is None else str(autocast).removeprefix("torch."),
        compile=bool(compile),
        temperatures=temperatures,
    )
    interval = CheckpointInterval(checkpoint_steps, checkpoint_seconds)
    if resume == "auto" and out is not None and place.first(partial(manifests.exists, Path(out))):
        return _repeated(
            settings,
            out,
            posterior,
            data,
            sampler=make_sampler,
            schedule=schedule,
            callbacks=callbacks,
            progress=progress,
            checkpoint_steps=checkpoint_steps,
            checkpoint_seconds=checkpoint_seconds,
            init=init,
            control_variate=control_variate,
            mesh=place.mesh,
        )
    control = None if control_variate is None else _control(control_variate, posterior, data, batches, place)
    engine = Engine(posterior, batches, make_sampler, schedule, settings, place, control)
    try:
        checks.check_sampler(
            engine.probe, posterior, settings, schedule, batches, place, out, control_variate is not None
        )
    except TypeError as error:
        raise ValueError(
            f"The sampler or the schedule can't be made with its options: {error}. Write lv.sample(…, lv.SGLD, "
            f"lr=1e-2, schedule=partial(CosineAnnealingLR, T_max=10_000))."
        ) from error
    start_loss = checks.check_data(posterior, batches, seed, autocast)
    remark_on_data(posterior, batches, stacklevel=3)
    starts = starting_points(init, range(chains), posterior, seed)
    with checks.preserve_rng_state():
        why = engine.choose_mode(mode, list(starts.values()), compile)
        if probe > 0 and can_probe(posterior, engine.probe, batches):
            engine.plan_probes(probe)
        manifest = make_manifest(
            engine, posterior, inputs=inputs_of(batches), sample_dtype=sample_dtype, keep_last=keep_last, tags=tags
        )
        manifest["start_loss"] = start_loss
        inputs = probe_inputs(posterior, batches)
        remark = remark_on_starts(init, posterior, chains)
        announced = (why, remark) if progress else None
        with started(engine, out, manifest, posterior.fixed_tensors(), starts, announced) as store:
            engine.run(store, callbacks, progress, interval)
    if not place.alone:
        place.wait_for_all()
        store.refresh()
    return concluded(store, posterior, inputs, place, progress)


def _by_autopilot(
    posterior: Posterior,
    data: Any,
    sampler: SamplerLike | None,
    options: Mapping[str, Any],
    refused: Mapping[str, Any],
    *,
    steps: int | None,
    budget: str | float | None,
    batch_size: int | Literal["full"] | None,
    chains: int | None,
    seed: int,
    init: Init,
    device: torch.device | str | None,
    out: str | Path | None,
    mode: str,
    compile: bool | None,
    resume: str | None,
    **others: Any,
) -> Run:
    """Everything that was not given is chosen."""
    since = time.perf_counter()
    if given := [name for name, value in refused.items() if value is not None]:
        raise ValueError(
            f"{given[0]} belongs to a run whose sampler, lr and steps are given: lv.sample(posterior, data, lv.SGHMC, "
            f"lr=1e-3, steps=10_000, {given[0]}=…). Without them, leave it to the autopilot."
        )
    posterior = copy.deepcopy(posterior)
    place = distributed.place_posterior(posterior, None, chains or 1, device)
    if not place.alone:
        raise ValueError("The autopilot runs in one process; give sampler, lr and steps to torchrun.")
    repeated = resume == "auto" and out is not None and manifests.exists(Path(out))
    load_fixed(None if repeated else init, posterior)
    batches = make_batches(data, None if isinstance(data, DataLoader) else batch_size, seed, device_of(posterior))
    checks.check_num_data(posterior, batches)
    plan = make_plan(
        posterior,
        batches,
        sampler,
        options,
        chains=chains,
        seed=seed,
        mode=mode,
        compile=compile,
        batch_size=batch_size,
        budget=budget,
        steps=steps,
    )
    if repeated:
        assert out is not None
        were = {"chains": chains, "sampler": sampler, "batch_size": batch_size}
        refuse_another_plan(out, plan, **{name: value is not None for name, value in were.items()})
        found = resume_run(out, posterior, data, callbacks=others["callbacks"], progress=others["progress"])
        assert isinstance(found, Run)
        return found
    fixed = chains is not None, sampler is not None or batch_size is not None
    store = begin(posterior, data, plan, *fixed, out=out, init=init, since=since, **others)
    return concluded(store, posterior, autopilot_probe(posterior, data, seed), place, others["progress"])


def _control(
    given: Mapping[str, Tensor] | Literal["map"], posterior: Posterior, data: Any, batches: Batches, place: Place
) -> ControlVariate:
    """The control variate at a point, which may have to be found."""
    from langevin.inference.find_map import find_map  # it samples, at temperature 0

    if place.mesh.data > 1:
        raise ValueError("control_variate needs whole mini-batches in each process: mesh='chains=2,data=1'.")
    if not isinstance(given, Mapping) and given != "map":
        raise ValueError(
            f"control_variate={given!r}: give a state dict near the mode, control_variate=lv.find_map(posterior, "
            f'data), or "map" to find it.'
        )
    return ControlVariate.at(given if isinstance(given, Mapping) else find_map(posterior, data), posterior, batches)


def _settings(
    steps: int, burn_in: int | None, thin: int | None, schedule: SchedulerFactory | None, **others: Any
) -> RunSettings:
    """Defaults: a quarter is burn-in, about a hundred samples a chain, or the ends of cycles."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise ValueError(f"steps must be an integer, 1 or more; given steps={steps!r}. Write steps=10_000.")
    if burn_in is not None and (isinstance(burn_in, bool) or not isinstance(burn_in, int)):
        raise ValueError(f"burn_in must be an integer, 0 or more; given burn_in={burn_in!r}.")
    burn_in = steps // 4 if burn_in is None else burn_in
    phase = burn_in
    if thin is None and isinstance(schedule, cyclical):
        thin, phase = schedule.length, 0
    return RunSettings(
        steps=steps,
        burn_in=burn_in,
        thin=max(1, (steps - burn_in) // 100) if thin is None else thin,
        phase=phase,
        **others,
    )


_FREE = ("steps", "chains", "mode", "probe_interval", "probe_size")  # may differ when a call is repeated


def _repeated(
    settings: RunSettings,
    path: str | Path,
    posterior: Posterior,
    data: Any,
    control_variate: Mapping[str, Tensor] | Literal["map"] | None,
    **options: Any,
) -> Run:
    """Continue the run that a repeated call finds, if it is the one that the call describes."""
    store = DirectoryStore.open(path)
    saved = read_settings(store)
    mine, its = asdict(settings), asdict(saved)
    mine["control_variate"], its["control_variate"] = (
        control_variate is not None,
        store.manifest.get("control_variate", False),
    )
    if different := [name for name in mine if name not in _FREE and mine[name] != its[name]]:
        name = different[0]
        raise RunError(
            f"{path} contains another run: its {name} is {its[name]}, given {mine[name]}. Choose another directory: "
            f"out={str(path) + '-2'!r}."
        )
    steps, chains = max(settings.steps, saved.steps), max(settings.chains, saved.chains)
    run = resume_run(path, posterior, data, steps=steps, chains=chains, **options)
    assert isinstance(run, Run)
    return run

"""`sample`, `resume` and, for `fit`, `minimize`: what a run is begun with, and gone on with (see `stepping`).

`sample` writes the checkpoint of step 0; from there on it is `resume`.
"""

from __future__ import annotations

import copy
import datetime
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm.auto import tqdm

from langevin.core.batches import as_batches
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.core.schedules import cyclical
from langevin.ensembles.predict import Predictor
from langevin.ensembles.run import Run, Scratch
from langevin.errors import RunError
from langevin.inference import checks as preflight
from langevin.inference import distributed
from langevin.inference.chains import Weights
from langevin.inference.distributed import Mesh
from langevin.inference.engine import Callbacks, go_on, save_starts
from langevin.inference.environment import environment
from langevin.inference.serialize import read_recipe, write_recipe
from langevin.inference.settings import Cadence, RunSettings
from langevin.inference.workshop import Workshop
from langevin.samplers import Sampler
from langevin.samplers.descent import Descent
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore
from langevin.storage.files import dtype_of

Init = Mapping[str, Tensor] | Run | Callable[[int], Mapping[str, Tensor]] | None


def sample(
    posterior: Posterior,
    data: Any,
    sampler: Callable[..., Sampler],
    *,
    steps: int,
    batch_size: int | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    schedule: Callable[[Any], LRScheduler] | None = None,
    chains: int = 1,
    seed: int = 0,
    init: Init = None,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    mode: str = "auto",
    freeze: bool = True,
    autocast: torch.dtype | None = None,
    accumulate: int = 1,
    compile: bool = False,
    callbacks: Callbacks = (),
    progress: bool = True,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 30.0,
    float16: bool = False,
    keep_last: int | None = None,
    tags: Mapping[str, Any] | None = None,
    mesh: Mesh | str | None = None,
    resume_if_there: bool = False,
) -> Run:
    """Draw samples of the posterior. The posterior's own model is left as it is.

    Args:
        posterior: what to sample.
        data: the training data: tensors (x, y), a map-style data set, or a DataLoader.
        sampler: a sampler class with its options, `partial(lv.SGLD, lr=1e-2)`; N, seed and chain are filled in.
        steps: steps of each chain in all, burn-in included.
        batch_size: examples per step (128); with a DataLoader it is the loader's.
        burn_in: steps before the first sample (a quarter of all); adaptive samplers are frozen at its end.
        thin: steps from one sample to the next; by default the cycle of a cyclical schedule, else such that a chain
            keeps about a hundred.
        schedule: a function from a sampler to a torch scheduler, or `lv.cyclical(length)`.
        chains: independent chains.
        seed: everything random is a function of it, the chain and the step.
        init: where chains start: the model's weights (None), a state dict such as `lv.find_map(…)` returns, the last
            samples of another run, or a function from a chain's number to a state dict.
        device: where to compute; by default where the model is.
        out: the directory of the run. Without one, the run is deleted with the object that is returned.
        mode: "vectorised" (chains as one computation), "sequential", or "auto": a short trial decides.
        freeze: whether adaptive preconditioners stop adapting at the end of burn-in, so that the target is exact.
        autocast: compute the loss in this precision (`torch.bfloat16`).
        accumulate: compute each batch in so many pieces, to save memory.
        compile: compile the loss, and the update of samplers that gain by it, with `torch.compile` (it takes a C++
            compiler and up to a minute, which is said).
        callbacks: functions that get a `StepInfo` after every step.
        progress: show a progress bar.
        checkpoint_steps: write a checkpoint every so many steps.
        checkpoint_seconds: and at least that often.
        float16: store samples in half the space.
        keep_last: keep only the last so many samples of each chain.
        tags: anything of yours, made of what JSON has, to stand in the manifest.
        mesh: how the processes that torchrun launched share the work, "chains=2,data=2"; by default as many as divide
            the chains have chains of their own, and the rest share the batches. Callbacks are called in each.
        resume_if_there: continue the run if `out` holds this very run already, so that a command which is simply
            repeated (by torchrun, Slurm, Kubernetes) goes on.
    """
    preflight.refuse_shards(posterior)
    posterior = copy.deepcopy(posterior)
    place = _placed(posterior, mesh, chains, device)
    batches = as_batches(data, batch_size, seed, _device(posterior))
    if isinstance(init, Mapping):  # frozen parameters start there too
        load_tensors(posterior, {name: init[name] for name in posterior.fixed_tensors() if name in init})
    preflight.check(posterior, batches, sampler, schedule, seed)
    burn_in = steps // 4 if burn_in is None else burn_in
    phase = burn_in
    if thin is None and isinstance(schedule, cyclical):
        thin, phase = schedule.length, 0
    plan = RunSettings(
        steps=steps,
        burn_in=burn_in,
        thin=max(1, (steps - burn_in) // 100) if thin is None else thin,
        phase=phase,
        chains=chains,
        seed=seed,
        batch_size=batch_size,
        mode="sequential",
        freeze=freeze,
        accumulate=accumulate,
        autocast=None if autocast is None else str(autocast).removeprefix("torch."),
        compile=compile,
    )
    if resume_if_there and out is not None and place.first(partial(manifests.there, Path(out))):
        return _repeated(
            plan,
            out,
            posterior,
            data,
            sampler=sampler,
            schedule=schedule,
            callbacks=callbacks,
            progress=progress,
            checkpoint_steps=checkpoint_steps,
            checkpoint_seconds=checkpoint_seconds,
            init=init,
            mesh=place.mesh,
        )
    workshop = Workshop(posterior, batches, sampler, schedule, plan, place)
    preflight.check_schedule(schedule, workshop.probe(), plan)
    preflight.check_adaptation(workshop.probe(), plan)
    preflight.check_mesh(posterior, workshop.probe(), place, out)
    starts = [starting_weights(init, chain, posterior) for chain in range(chains)]
    with preflight.preserve_rng_state():
        chosen, why = place.first(lambda: workshop.trial().choose(mode, starts))
    workshop.plan = replace(plan, mode=chosen)
    manifest = _manifest(workshop, float16, keep_last, tags)
    cadence = Cadence(checkpoint_steps, checkpoint_seconds)
    return _begin(workshop, starts, manifest, out, callbacks, progress, cadence, why)


def minimize(
    objective: Posterior,
    data: Any,
    optimizer: Callable[..., Optimizer],
    *,
    steps: int,
    burn_in: int,
    every: int,
    phase: int,
    schedule: Callable[[Any], LRScheduler] | None,
    start: Weights,
    batch_size: int | None,
    seed: int,
    out: str | Path | None,
    autocast: torch.dtype | None,
    accumulate: int,
    callbacks: Callbacks,
    progress: bool,
    checkpoint_steps: int | None,
    checkpoint_seconds: float,
    tags: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> Run:
    """Take the objective's parameters downhill from `start`, keeping them every so many steps: what `fit` does.

    The same loop as that of `sample`, with one chain and no temperature; `about` goes into the manifest.
    """
    batches = as_batches(data, batch_size, seed, _device(objective))
    plan = RunSettings(
        steps=steps,
        burn_in=burn_in,
        thin=every,
        phase=phase,
        chains=1,
        seed=seed,
        batch_size=batch_size,
        mode="sequential",
        freeze=False,
        accumulate=accumulate,
        autocast=None if autocast is None else str(autocast).removeprefix("torch."),
        thermometer=False,
    )
    workshop = Workshop(objective, batches, partial(Descent, optimizer=optimizer), schedule, plan)
    preflight.check_schedule(schedule, workshop.probe(), plan)
    manifest = _manifest(workshop, False, None, tags) | dict(about)
    cadence = Cadence(checkpoint_steps, checkpoint_seconds)
    return _begin(workshop, [start], manifest, out, callbacks, progress, cadence, "")


def keep(
    posterior: Posterior,
    data: Any,
    tensors: Mapping[str, Tensor],
    notes: Mapping[str, float],
    *,
    seed: int,
    out: str | Path | None,
    tags: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> Run:
    """DirectoryStore a result that took no steps as a run of one."""
    batches = as_batches(data, None, seed, _device(posterior))
    plan = RunSettings(1, 0, 1, 0, 1, seed, None, "sequential", False, 1, None, thermometer=False)
    manifest = _manifest(Workshop(posterior, batches, Descent, None, plan), False, None, tags)
    path = Path(tempfile.mkdtemp(prefix="langevin-")) if out is None else Path(out)
    store = DirectoryStore.create(path, manifest | {"tensors": _specification(tensors)} | dict(about))
    with store.writing():
        store.write_fixed(posterior.fixed_tensors())
        store.add(0, 1, tensors, notes)
        store.flush()
        store.write_manifest()
    return Run(store, Predictor(posterior.model, posterior.likelihood), scratch=Scratch(path) if out is None else None)


def _begin(
    workshop: Workshop,
    starts: Sequence[Weights],
    manifest: dict[str, Any],
    out: str | Path | None,
    callbacks: Callbacks,
    progress: bool,
    cadence: Cadence,
    why: str,
) -> Run:
    """Write the checkpoint of step 0, and go on from there."""
    posterior, plan, place = workshop.posterior, workshop.plan, workshop.place
    path = Path(tempfile.mkdtemp(prefix="langevin-")) if out is None else Path(out)

    def create() -> DirectoryStore:
        store = DirectoryStore.create(path, manifest)
        preflight.refuse_if_too_large(store, plan)
        if progress:
            _announce(store, plan, why)
        return store

    def begin(store: DirectoryStore) -> None:
        store.write_fixed(posterior.fixed_tensors())
        save_starts(store, workshop, dict(enumerate(starts)))
        store.write_manifest()  # last: a directory with a manifest is a run that can go on

    with preflight.preserve_rng_state(), _holding(path, place, plan.chains, create, begin) as store:
        go_on(store, workshop, callbacks, progress, cadence)
    scratch = Scratch(path) if out is None else None
    return _finished(store, place, Predictor(posterior.model, posterior.likelihood), scratch)


def resume(
    path: str | Path,
    posterior: Posterior,
    data: Any,
    *,
    steps: int | None = None,
    sampler: Callable[..., Sampler] | None = None,
    schedule: Callable[[Any], LRScheduler] | None = None,
    device: torch.device | str | None = None,
    callbacks: Callbacks = (),
    progress: bool = True,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 30.0,
    chains: int | None = None,
    init: Init = None,
    mesh: Mesh | str | None = None,
) -> Run:
    """Continue a run from its last checkpoint, to `steps` in all (by default as many as were planned).

    It goes on exactly as if it had never stopped: the samples are bit for bit those of an undisturbed run in the same
    environment, and a difference of environment is said. The sampler and the schedule are known from the run unless
    they were functions of the user's, which must then be given again.

    With `chains` larger than before, chains are added; they start at `init` (as in `sample`: the weights of the model
    that is given, if None) and are those of a run that had so many from the beginning. The processes (`mesh`) need
    not be as many as before.
    """
    scratch = Scratch.of(path)  # held from here on, so that a run without `out` outlives its first object
    store = DirectoryStore.open(path)
    manifest = store.manifest
    posterior = copy.deepcopy(posterior)
    manifests.require(store.path, manifest)
    plan = _planned(store)
    before = plan.chains
    place = _placed(posterior, mesh, chains or before, device)
    if chains is not None and chains < before:
        raise ValueError(f"chains can't shrink: the run has {before}, given chains={chains}.")
    if steps is not None and steps < plan.steps:
        raise ValueError(f"steps is the new total and can't shrink: {plan.steps} were planned, given steps={steps}.")
    plan = replace(plan, steps=steps or plan.steps, chains=chains or before)
    batches = as_batches(data, plan.batch_size, plan.seed, _device(posterior))
    workshop = Workshop(
        posterior,
        batches,
        sampler or _known(manifest, "sampler", path),
        schedule or (None if manifest["schedule"] is False else _known(manifest, "schedule", path)),
        plan,
        place,
    )
    preflight.check_same(store, posterior, batches)
    preflight.check_same_sampler(store, sampler, schedule)
    try:
        preflight.check_schedule(workshop.schedule, workshop.probe(), plan)
    except (TypeError, OverflowError, AttributeError) as error:
        raise RunError(f"The sampler or the schedule of {path} can't be made with its options: {error}.") from error
    preflight.check_mesh(posterior, workshop.probe(), place, path)
    preflight.refuse_if_too_large(store, plan)
    load_tensors(posterior, store.fixed())
    starts = {chain: starting_weights(init, chain, posterior) for chain in range(before, plan.chains)}
    here = environment(_device(posterior)) | {"replicas": place.mesh.data}
    preflight.warn_of_differences(manifest["environment"], here, batches)

    def amend(store: DirectoryStore) -> None:
        store.refresh()  # another process may have written since
        if starts:
            store.drop_checkpoints(starts)  # of an attempt to add chains that failed
            save_starts(store, workshop, starts)
        store.manifest["plan"] = asdict(plan)
        store.manifest["resumed"].append({"at": _now(), "environment": here})
        store.write_manifest()

    with preflight.preserve_rng_state(), _holding(store.path, place, plan.chains, lambda: store, amend) as store:
        go_on(store, workshop, callbacks, progress, Cadence(checkpoint_steps, checkpoint_seconds))
    return _finished(store, place, Predictor(posterior.model, posterior.likelihood), scratch)


def _placed(
    posterior: Posterior, mesh: Mesh | str | None, chains: int, device: torch.device | str | None
) -> distributed.Place:
    """Where this process stands; the posterior goes to its device."""
    wanted = _device(posterior) if device is None else torch.device(device)
    place = distributed.place(mesh, chains, wanted.type)
    posterior.to(place.device(wanted))
    return place


@contextmanager
def _holding(
    path: Path,
    place: distributed.Place,
    chains: int,
    opened: Callable[[], DirectoryStore],
    change: Callable[[DirectoryStore], None],
) -> Iterator[DirectoryStore]:
    """Let one process change the run as a whole; then every one holds the chains that it writes."""
    if place.alone:
        store = opened()
        with store.writing():
            change(store)
            yield store
        return

    def lead() -> None:
        store = opened()
        with store.writing():
            change(store)

    place.first(lead)
    store = DirectoryStore.open(path)
    with store.writing(place.chains_of(chains)) if place.writes else nullcontext():
        yield store


def _finished(store: DirectoryStore, place: distributed.Place, predictor: Predictor, scratch: Scratch | None) -> Run:
    """The run with the samples of all processes."""
    if not place.alone:
        place.wait_for_all()
        store.refresh()
    return Run(store, predictor, scratch=scratch)


def _repeated(plan: RunSettings, path: str | Path, posterior: Posterior, data: Any, **options: Any) -> Run:
    """Continue the run that a repeated call finds, if it is the one that the call describes."""
    saved = _planned(DirectoryStore.open(path))
    mine, its = asdict(plan), asdict(saved)
    if different := [name for name in mine if name not in ("steps", "chains", "mode") and mine[name] != its[name]]:
        name = different[0]
        raise RunError(
            f"{path} holds another run: its {name} is {its[name]}, given {mine[name]}. Choose another directory: "
            f"out={str(path) + '-2'!r}."
        )
    return resume(
        path, posterior, data, steps=max(plan.steps, saved.steps), chains=max(plan.chains, saved.chains), **options
    )


def _announce(store: DirectoryStore, plan: RunSettings, why: str) -> None:
    chains = "1 chain" if plan.chains == 1 else f"{plan.chains} chains, {plan.mode} ({why or 'as asked'})"
    what, kept = (chains, "samples") if plan.thermometer else (f"{plan.steps} steps", "snapshots")
    size = preflight.human(preflight.size_on_disk(store, plan))
    tqdm.write(f"{what}; {plan.kept_per_chain() * plan.chains} {kept}, {size}, go to {store.path}", sys.stderr)


def _device(posterior: Posterior) -> torch.device:
    return next(posterior.parameters()).device


def starting_weights(init: Init, chain: int, posterior: Posterior) -> dict[str, Tensor]:
    """The weights at which a chain starts."""
    current = {name: p.detach().clone() for name, p in posterior.trainable_parameters().items()}
    current |= {name: b.clone() for name, b in posterior.running_statistics().items()}
    if init is None:
        return current
    if isinstance(init, Run):
        given: Mapping[str, Tensor] = init.chain(init.chains[chain % len(init.chains)])[-1]
    else:
        given = init(chain) if callable(init) else init
    if not isinstance(given, Mapping):
        raise ValueError(f"init must be a state dict, a run or a function of the chain; given {type(given).__name__}.")
    for name, tensor in current.items():
        if name in given and given[name].shape == tensor.shape:
            current[name] = given[name].detach().to(tensor, copy=True)
        elif not name.startswith("likelihood."):
            raise ValueError(
                f"init has no {name!r} of shape {tuple(tensor.shape)}; it has {list(given)[:5]}… Give a state dict of "
                f"this very model."
            )
    return current


def _manifest(
    workshop: Workshop, float16: bool, keep_last: int | None, tags: Mapping[str, Any] | None
) -> dict[str, Any]:
    posterior, plan = workshop.posterior, workshop.plan
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last={keep_last}: keep at least one sample, or leave it out to keep all.")
    tensors = posterior.trainable_parameters() | posterior.running_statistics()
    return {
        "created": _now(),
        "tags": dict(tags or {}),
        "plan": asdict(plan),
        "sampler": write_recipe(workshop.sampler),
        "schedule": False if workshop.schedule is None else write_recipe(workshop.schedule),
        "num_data": posterior.num_data,
        **preflight.describe(posterior),
        "data": workshop.batches.fingerprint(),
        "inputs": preflight.inputs(workshop.batches),
        "float16": float16,
        "keep_last": keep_last,
        "tensors": _specification(tensors),
        "environment": environment(_device(posterior)) | {"replicas": workshop.place.mesh.data},
        "resumed": [],
    }


def _specification(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for name, t in tensors.items()}


def _planned(store: DirectoryStore) -> RunSettings:
    """The plan in a manifest, which may have been written by anyone."""
    try:
        plan = RunSettings(**store.manifest["plan"])
        if plan.mode not in ("vectorised", "sequential"):
            raise ValueError(f"mode={plan.mode!r}")
        if plan.autocast is not None:
            dtype_of(plan.autocast)
    except (TypeError, ValueError) as error:
        raise RunError(f"{manifests.file(store.path)} has no plan that can be followed: {error}") from None
    return plan


def _known(manifest: dict[str, Any], what: str, path: str | Path) -> Callable[..., Any]:
    if manifest[what] is None:
        raise RunError(
            f"The {what} of {path} was a function that can't be written down; give it again: "
            f"lv.resume({str(path)!r}, posterior, data, {what}=…)."
        )
    try:
        return read_recipe(manifest[what])
    except ValueError as error:
        raise RunError(f"The {what} of {path} is not known: {error}") from None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

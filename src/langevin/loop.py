"""`sample`, `resume` and, for `fit`, `minimize`: the only loop.

A step: fetch the batch of (seed, chain, step), compute the loss and its gradient, let the sampler move, note loss and
temperature, keep the sample if its turn has come, write a checkpoint if one is due. Weights change only in
`Chains.advance`, so whatever goes wrong elsewhere leaves a state from which the run continues. `sample` writes the
checkpoint of step 0; from there on it is `resume`.
"""

from __future__ import annotations

import copy
import datetime
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm.auto import tqdm

from langevin import distributed, preflight
from langevin import manifest as manifests
from langevin.batches import Batches, as_batches
from langevin.chains import Chains, MakeSampler, MakeScheduler, OneChain, StackedChains, Weights
from langevin.disk import dtype_of
from langevin.distributed import Mesh
from langevin.environment import environment
from langevin.interrupt import Interrupt
from langevin.plan import Cadence, Moment, Notes, Plan
from langevin.posterior import Posterior, load_tensors
from langevin.predictive import Predictor
from langevin.preflight import Diverged
from langevin.recipes import read_recipe, write_recipe
from langevin.run import Run, Scratch
from langevin.samplers import Sampler
from langevin.samplers.descent import Descent
from langevin.schedules import cyclical
from langevin.store import RunError, Store

Init = Mapping[str, Tensor] | Run | Callable[[int], Mapping[str, Tensor]] | None
Callbacks = Sequence[Callable[[Moment], None]]


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
        compile: compile the loss with `torch.compile` (it takes a C++ compiler and up to a minute, which is said).
        callbacks: functions that get a `Moment` after every step.
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
    plan = Plan(
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
    workshop = _Workshop(posterior, batches, sampler, schedule, plan, place)
    preflight.check_schedule(schedule, workshop.probe(), plan)
    preflight.check_adaptation(workshop.probe(), plan)
    preflight.check_mesh(posterior, workshop.probe(), place, out)
    starts = [starting_weights(init, chain, posterior) for chain in range(chains)]
    with preflight.generators_kept():
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
    plan = Plan(
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
    workshop = _Workshop(objective, batches, partial(Descent, optimizer=optimizer), schedule, plan)
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
    """Store a result that took no steps as a run of one."""
    batches = as_batches(data, None, seed, _device(posterior))
    plan = Plan(1, 0, 1, 0, 1, seed, None, "sequential", False, 1, None, thermometer=False)
    manifest = _manifest(_Workshop(posterior, batches, Descent, None, plan), False, None, tags)
    path = Path(tempfile.mkdtemp(prefix="langevin-")) if out is None else Path(out)
    store = Store.create(path, manifest | {"tensors": _specification(tensors)} | dict(about))
    with store.writing():
        store.write_fixed(posterior.fixed_tensors())
        store.add(0, 1, tensors, notes)
        store.flush()
        store.write_manifest()
    return Run(store, Predictor(posterior.model, posterior.likelihood), scratch=Scratch(path) if out is None else None)


def _begin(
    workshop: _Workshop,
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

    def create() -> Store:
        store = Store.create(path, manifest)
        preflight.refuse_if_too_large(store, plan)
        if progress:
            _announce(store, plan, why)
        return store

    def begin(store: Store) -> None:
        store.write_fixed(posterior.fixed_tensors())
        _save_starts(store, workshop, dict(enumerate(starts)))
        store.write_manifest()  # last: a directory with a manifest is a run that can go on

    with preflight.generators_kept(), _holding(path, place, plan.chains, create, begin) as store:
        _go_on(store, workshop, callbacks, progress, cadence)
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
    store = Store.open(path)
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
    workshop = _Workshop(
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

    def amend(store: Store) -> None:
        store.refresh()  # another process may have written since
        if starts:
            store.drop_checkpoints(starts)  # of an attempt to add chains that failed
            _save_starts(store, workshop, starts)
        store.manifest["plan"] = asdict(plan)
        store.manifest["resumed"].append({"at": _now(), "environment": here})
        store.write_manifest()

    with preflight.generators_kept(), _holding(store.path, place, plan.chains, lambda: store, amend) as store:
        _go_on(store, workshop, callbacks, progress, Cadence(checkpoint_steps, checkpoint_seconds))
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
    path: Path, place: distributed.Place, chains: int, opened: Callable[[], Store], change: Callable[[Store], None]
) -> Iterator[Store]:
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
    store = Store.open(path)
    with store.writing(place.chains_of(chains)) if place.writes else nullcontext():
        yield store


def _finished(store: Store, place: distributed.Place, predictor: Predictor, scratch: Scratch | None) -> Run:
    """The run with the samples of all processes."""
    if not place.alone:
        place.wait_for_all()
        store.refresh()
    return Run(store, predictor, scratch=scratch)


def _repeated(plan: Plan, path: str | Path, posterior: Posterior, data: Any, **options: Any) -> Run:
    """Continue the run that a repeated call finds, if it is the one that the call describes."""
    saved = _planned(Store.open(path))
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


def _save_starts(store: Store, workshop: _Workshop, starts: Mapping[int, Weights]) -> None:
    """Write the checkpoints of step 0, each file for chains that will advance together."""
    for block in workshop.place.blocks(workshop.plan.chains):
        new = [chain for chain in block if chain in starts]
        for together in workshop.together([0] * len(new)):
            numbers = [new[n] for n in together]
            group = workshop.chains(numbers, [starts[n] for n in numbers])
            group.leads = True
            _save(store, group, [Notes() for _ in numbers])


@dataclass
class _Workshop:
    """Makes the chains that advance together."""

    posterior: Posterior
    batches: Batches
    sampler: MakeSampler
    schedule: MakeScheduler | None
    plan: Plan
    place: distributed.Place = distributed.ALONE

    def trial(self) -> _Workshop:
        """The work of the first process, without the others."""
        mine = replace(self.plan, chains=len(self.place.blocks(self.plan.chains)[0]))
        return replace(self, plan=mine, place=distributed.ALONE)

    def probe(self) -> Sampler:
        """A sampler that is only looked at."""
        params = list(self.posterior.sampled_parameters().values())
        return self.sampler(params, num_data=self.posterior.num_data, seed=0, chain=0)

    def chains(self, numbers: Sequence[int], starts: Sequence[Weights], kind: type[Chains] | None = None) -> Chains:
        """Chains of these numbers at these weights."""
        if kind is None:
            kind = OneChain if self.plan.mode == "sequential" else StackedChains
        return kind(
            self.posterior,
            numbers,
            starts,
            self.batches,
            self.sampler,
            self.schedule,
            seed=self.plan.seed,
            autocast=None if self.plan.autocast is None else dtype_of(self.plan.autocast),
            accumulate=self.plan.accumulate,
            compiled=self.plan.compile,
            replicas=self.place.replicas,
        )

    def together(self, steps: Sequence[int]) -> list[list[int]]:
        """Which chains advance together, the n-th having made `steps[n]` steps: one, or all at the same step."""
        if self.plan.mode == "sequential":
            return [[n] for n in range(len(steps))]
        return [[n for n, at in enumerate(steps) if at == step] for step in sorted(set(steps))]

    def choose(self, mode: str, starts: Sequence[Weights]) -> tuple[str, str]:
        """The mode and, in a few words, why."""
        if mode not in ("auto", "vectorised", "sequential"):
            raise ValueError(f'mode={mode!r}: choose "auto", "vectorised" or "sequential".')
        if self.plan.chains == 1 or mode == "sequential":
            return "sequential", ""
        try:
            stacked, single = self._stacked(starts), self.chains([0], starts[:1], OneChain)
            together = _seconds_per_step(stacked)
        except (RuntimeError, ValueError) as error:
            if mode == "vectorised":
                raise ValueError(f'mode="vectorised" is not possible: {error} Write mode="sequential".') from error
            return "sequential", str(error).splitlines()[0]
        if mode == "vectorised":
            return mode, "as asked"
        apart = _seconds_per_step(single) * self.plan.chains
        why = f"a step of all chains takes {together:.1g} s together and {apart:.1g} s one after another"
        return ("vectorised" if together < apart else "sequential"), why

    def _stacked(self, starts: Sequence[Weights]) -> Chains:
        single = self.chains([0], starts[:1], OneChain)
        if not single.sampler.elementwise:
            raise ValueError(f"{type(single.sampler).__name__} does not treat weights one by one.")
        return self.chains(range(self.plan.chains), starts, StackedChains)


def _go_on(store: Store, workshop: _Workshop, callbacks: Callbacks, progress: bool, cadence: Cadence) -> None:
    """Take every chain from its checkpoint to the end of the plan."""
    plan = workshop.plan
    at = store.checkpoint_steps()
    if missing := list(islice((chain for chain in range(plan.chains) if chain not in at), 10)):
        raise RunError(f"{store.path} has no checkpoint of the chains {missing}, so they can't go on.")
    mine = workshop.place.chains_of(plan.chains)
    groups = [[mine[n] for n in together] for together in workshop.together([at[chain] for chain in mine])]
    progress = progress and workshop.place.leads
    with Interrupt() as interrupt, _bar(plan.steps * len(groups), progress) as bar:
        for numbers in groups:
            bar.update(at[numbers[0]])
            if at[numbers[0]] == plan.steps:
                continue
            group, notes = _restored(store, workshop, numbers)
            _advance(store, group, notes, plan, callbacks, bar, cadence, interrupt)


def _restored(store: Store, workshop: _Workshop, numbers: list[int]) -> tuple[Chains, list[Notes]]:
    """Chains as their checkpoints left them, and what was noted since their last samples."""
    checkpoints = [store.checkpoint(n) for n in numbers]
    with _fitting(store, numbers):
        shapes = {name: spec["shape"] for name, spec in store.manifest["tensors"].items()}
        starts = [
            {name: checkpoint.tensors[f"weights/{name}"].reshape(shape) for name, shape in shapes.items()}
            for checkpoint in checkpoints
        ]
    group = workshop.chains(numbers, starts)
    with _fitting(store, numbers):
        group.restore(checkpoints)
        return group, [Notes(**checkpoint.values["notes"]) for checkpoint in checkpoints]


@contextmanager
def _fitting(store: Store, numbers: list[int]) -> Iterator[None]:
    """Whatever goes wrong inside means that a checkpoint is not of this model and sampler."""
    try:
        yield
    except RunError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        raise RunError(
            f"The checkpoint of the chains {numbers} in {store.path} does not fit this model and sampler, so they "
            f"can't go on from it ({type(error).__name__}: {error})."
        ) from error


def _advance(
    store: Store,
    group: Chains,
    notes: list[Notes],
    plan: Plan,
    callbacks: Callbacks,
    bar: Any,
    cadence: Cadence,
    interrupt: Interrupt,
) -> None:
    """Take a group of chains to the end of the plan."""
    begin = time.monotonic() if plan.compile and not bar.disable else None
    whole = True  # the weights are those of a whole number of steps, and their sample, if one was due, is kept
    shown = 0.0
    try:
        while group.step < plan.steps:
            losses = group.backward()
            if begin is not None:
                tqdm.write(f"compiled in {time.monotonic() - begin:.0f} s", sys.stderr)
                begin = None
            heats = _note(store, group, notes, plan, losses)
            lr = group.lr()
            whole = False
            try:
                group.advance()
            except FloatingPointError as error:
                raise Diverged(f"{_divergence(group.numbers[0], 'it diverged', group, store)} {error}") from None
            if group.step == plan.burn_in and plan.freeze:
                group.sampler.freeze()
            if plan.keeps(group.step) or group.step % 100 == 0 or group.step == plan.steps:
                group.check_replicas()
            if plan.keeps(group.step):
                _keep(store, group, notes, lr)
            whole = True
            if cadence.due(group.step):
                _save(store, group, notes)
            for callback in callbacks:
                callback(
                    Moment(group.numbers, group.step, plan, losses, lr, store.kept(), group.sampler, group.copy, heats)
                )
            bar.update()
            store.beat(group.numbers, group.step)
            if not bar.disable and time.monotonic() - shown > 0.5:
                shown = time.monotonic()
                bar.set_postfix_str(_state_of_affairs(store, group, losses, notes), refresh=False)
            if group.agree(interrupt.requested):
                raise interrupt.exception()
        _save(store, group, notes)
    except (Diverged, RunError):
        with suppress(Exception):
            store.flush()
        raise
    except BaseException:
        with suppress(Exception):
            if whole:
                _save(store, group, notes)
            else:
                store.flush()
            tqdm.write(f"Stopped at step {group.step} of {plan.steps}; resume from {store.path}.", sys.stderr)
        raise


def _note(store: Store, group: Chains, notes: list[Notes], plan: Plan, losses: list[float]) -> list[float]:
    """Note losses, checked; now and then read, note and return temperatures about the mean of late burn-in."""
    for chain, note, loss in zip(group.numbers, notes, losses, strict=True):
        if not math.isfinite(loss):
            raise Diverged(_divergence(chain, f"the loss is {loss}", group, store))
        note.loss += loss
        note.steps += 1
    if plan.averages(group.step):
        group.thermometer.average(group.params)
    elif plan.reads_temperature(group.step):
        each = group.thermometer.measure_each(group.params)
        observed = {f"temperature/{name}": row for name, row in zip(group.names, each.tolist(), strict=True)}
        observed |= group.observables()
        heats: list[float] = group.thermometer.over_all(each).tolist()
        for i, (note, heat) in enumerate(zip(notes, heats, strict=True)):
            note.heat += heat
            note.readings += 1
            for name, values in observed.items():
                note.observe(name, values[i])
        return heats
    return []


def _keep(store: Store, group: Chains, notes: list[Notes], lr: float) -> None:
    for index, chain in enumerate(group.numbers):
        try:
            if group.leads:
                store.add(chain, group.step, group.sample(index), notes[index].means(lr))
        except FloatingPointError as error:
            raise Diverged(_divergence(chain, str(error), group, store)) from None
        notes[index] = Notes()


def _save(store: Store, group: Chains, notes: list[Notes]) -> None:
    if not group.leads:
        return
    checkpoints = {chain: group.checkpoint(i, {"notes": asdict(notes[i])}) for i, chain in enumerate(group.numbers)}
    for chain, checkpoint in checkpoints.items():
        for name, tensor in checkpoint.tensors.items():  # a momentum or a thermostat may be lost before any weight is
            if not bool(tensor.isfinite().all()):
                raise Diverged(_divergence(chain, f"{name} is not finite", group, store))
    store.write_checkpoint(checkpoints)


def _divergence(chain: int, what: str, group: Chains, store: Store) -> str:
    spoilt = [name for name, p in zip(group.names, group.params, strict=True) if not bool(p.isfinite().all())]
    which = f" No longer finite: {', '.join(spoilt[:3])}{'…' if len(spoilt) > 3 else ''}." if spoilt else ""
    return (
        f"Chain {chain}: {what} at step {group.step}, with lr={group.lr():.3g}.{which} The samples before and the "
        f"last good checkpoint are kept in {store.path}. Sample anew with a smaller lr; `langevin doctor` estimates "
        f"the largest stable one."
    )


def _state_of_affairs(store: Store, group: Chains, losses: list[float], notes: list[Notes]) -> str:
    readings = sum(note.readings for note in notes)
    heat = f", T {sum(note.heat for note in notes) / readings:.2f}" if readings else ""
    which = f"chain {group.numbers[0]}" if len(group.numbers) == 1 else f"{len(group.numbers)} chains"
    return f"{which}, loss {sum(losses) / len(losses):.3g}{heat}, kept {store.kept()} + {store.waiting()} to be written"


def _bar(total: int, progress: bool) -> Any:
    interval = 0.2 if sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(total=total, unit="step", disable=not progress, mininterval=interval, delay=1.0, dynamic_ncols=True)


def _announce(store: Store, plan: Plan, why: str) -> None:
    chains = "1 chain" if plan.chains == 1 else f"{plan.chains} chains, {plan.mode} ({why or 'as asked'})"
    what, kept = (chains, "samples") if plan.thermometer else (f"{plan.steps} steps", "snapshots")
    size = preflight.human(preflight.size_on_disk(store, plan))
    tqdm.write(f"{what}; {plan.kept_per_chain() * plan.chains} {kept}, {size}, go to {store.path}", sys.stderr)


def _seconds_per_step(group: Chains) -> float:
    """The median time of a few steps, on weights that are thrown away."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        group.backward()
        group.advance()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[2]


def _device(posterior: Posterior) -> torch.device:
    return next(posterior.parameters()).device


def starting_weights(init: Init, chain: int, posterior: Posterior) -> dict[str, Tensor]:
    """The weights at which a chain starts."""
    current = {name: p.detach().clone() for name, p in posterior.sampled_parameters().items()}
    current |= {name: b.clone() for name, b in posterior.moving_buffers().items()}
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
    workshop: _Workshop, float16: bool, keep_last: int | None, tags: Mapping[str, Any] | None
) -> dict[str, Any]:
    posterior, plan = workshop.posterior, workshop.plan
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last={keep_last}: keep at least one sample, or leave it out to keep all.")
    tensors = posterior.sampled_parameters() | posterior.moving_buffers()
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


def _planned(store: Store) -> Plan:
    """The plan in a manifest, which may have been written by anyone."""
    try:
        plan = Plan(**store.manifest["plan"])
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

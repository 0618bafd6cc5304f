"""`sample` and `resume`: the only loop.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from tqdm.auto import tqdm

from langevin import preflight
from langevin.batches import Batches, as_batches
from langevin.chains import Chains, MakeSampler, MakeScheduler, OneChain, StackedChains, Weights
from langevin.environment import environment
from langevin.interrupt import Interrupt
from langevin.plan import Cadence, Moment, Notes, Plan
from langevin.posterior import Posterior, load_tensors
from langevin.predictive import Predictor
from langevin.preflight import Diverged
from langevin.recipes import read_recipe, write_recipe
from langevin.run import Run, Scratch
from langevin.samplers import Sampler
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
    """
    posterior = copy.deepcopy(posterior)
    if device is not None:
        posterior.to(device)
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
    workshop = _Workshop(posterior, batches, sampler, schedule, plan)
    preflight.check_schedule(schedule, workshop.probe(), plan)
    preflight.check_adaptation(workshop.probe(), plan)
    starts = [_start(init, chain, posterior) for chain in range(chains)]
    with preflight.generators_kept():
        chosen, why = workshop.choose(mode, starts)
    workshop.plan = replace(plan, mode=chosen)
    manifest = _manifest(workshop, float16, keep_last, tags)
    path = Path(tempfile.mkdtemp(prefix="langevin-")) if out is None else Path(out)
    store = Store.create(path, manifest)
    preflight.refuse_if_too_large(store, plan)
    if progress:
        _announce(store, workshop.plan, why)
    with preflight.generators_kept(), store.writing():
        store.write_fixed(posterior.fixed_tensors())
        for numbers in workshop.together([0] * chains):
            group = workshop.chains(numbers, [starts[n] for n in numbers])
            _save(store, group, [Notes() for _ in numbers])
        store.write_manifest()  # last: a directory with a manifest is a run that can go on
        _go_on(store, workshop, callbacks, progress, Cadence(checkpoint_steps, checkpoint_seconds))
    return Run(store, Predictor(posterior.model, posterior.likelihood), scratch=Scratch(path) if out is None else None)


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
) -> Run:
    """Continue a run from its last checkpoint, to `steps` in all (by default as many as were planned).

    It goes on exactly as if it had never stopped: the samples are bit for bit those of an undisturbed run in the same
    environment, and a difference of environment is said. The sampler and the schedule are known from the run unless
    they were functions of the user's, which must then be given again.
    """
    store = Store.open(path)
    manifest = store.manifest
    posterior = copy.deepcopy(posterior)
    if device is not None:
        posterior.to(device)
    plan = Plan(**manifest["plan"])
    if steps is not None and steps < plan.steps:
        raise ValueError(f"steps is the new total and can't shrink: {plan.steps} were planned, given steps={steps}.")
    plan = replace(plan, steps=steps or plan.steps)
    batches = as_batches(data, plan.batch_size, plan.seed, _device(posterior))
    workshop = _Workshop(
        posterior,
        batches,
        sampler or _known(manifest, "sampler", path),
        schedule or (None if manifest["schedule"] is False else _known(manifest, "schedule", path)),
        plan,
    )
    preflight.check_same(store, posterior, batches)
    preflight.check_same_sampler(store, sampler, schedule)
    preflight.check_schedule(workshop.schedule, workshop.probe(), plan)
    preflight.refuse_if_too_large(store, plan)
    load_tensors(posterior, store.fixed())
    here = environment(_device(posterior))
    preflight.warn_of_differences(manifest["environment"], here, batches)
    with preflight.generators_kept(), store.writing():
        store.refresh()  # another process may have written since
        manifest["plan"] = asdict(plan)
        manifest["resumed"].append({"at": _now(), "environment": here})
        store.write_manifest()
        _go_on(store, workshop, callbacks, progress, Cadence(checkpoint_steps, checkpoint_seconds))
    return Run(store, Predictor(posterior.model, posterior.likelihood))


@dataclass
class _Workshop:
    """Makes the chains that advance together."""

    posterior: Posterior
    batches: Batches
    sampler: MakeSampler
    schedule: MakeScheduler | None
    plan: Plan

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
            autocast=None if self.plan.autocast is None else getattr(torch, self.plan.autocast),
            accumulate=self.plan.accumulate,
            compiled=self.plan.compile,
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
    if missing := [chain for chain in range(plan.chains) if chain not in at]:
        raise RunError(f"{store.path} has no checkpoint of the chains {missing}, so they can't go on.")
    groups = workshop.together([at[chain] for chain in range(plan.chains)])
    with Interrupt() as interrupt, _bar(plan.steps * len(groups), progress) as bar:
        for numbers in groups:
            bar.update(at[numbers[0]])
            if at[numbers[0]] == plan.steps:
                continue
            checkpoints = [store.checkpoint(n) for n in numbers]
            starts = [
                {name: checkpoint.tensors[f"weights/{name}"] for name in store.manifest["tensors"]}
                for checkpoint in checkpoints
            ]
            group = workshop.chains(numbers, starts)
            group.restore(checkpoints)
            notes = [Notes(**checkpoint.values["notes"]) for checkpoint in checkpoints]
            _advance(store, group, notes, plan, callbacks, bar, cadence, interrupt)


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
            _note(store, group, notes, plan, losses)
            lr = group.lr()
            whole = False
            try:
                group.advance()
            except FloatingPointError as error:
                raise Diverged(f"{_divergence(group.numbers[0], 'it diverged', group, store)} {error}") from None
            if group.step == plan.burn_in and plan.freeze:
                group.sampler.freeze()
            if plan.keeps(group.step):
                _keep(store, group, notes, lr)
            whole = True
            if cadence.due(group.step):
                _save(store, group, notes)
            for callback in callbacks:
                callback(Moment(group.numbers, group.step, plan, losses, lr, store.kept(), group.sampler, group.copy))
            bar.update()
            if not bar.disable and time.monotonic() - shown > 0.5:
                shown = time.monotonic()
                bar.set_postfix_str(_state_of_affairs(store, group, losses, notes), refresh=False)
            if interrupt.requested:
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


def _note(store: Store, group: Chains, notes: list[Notes], plan: Plan, losses: list[float]) -> None:
    """Losses, checked, and now and then the temperature about the mean of the second half of burn-in."""
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
        for i, (note, heat) in enumerate(zip(notes, group.thermometer.over_all(each).tolist(), strict=True)):
            note.heat += heat
            note.readings += 1
            for name, values in observed.items():
                note.observe(name, values[i])


def _keep(store: Store, group: Chains, notes: list[Notes], lr: float) -> None:
    for index, chain in enumerate(group.numbers):
        try:
            store.add(chain, group.step, group.sample(index), notes[index].means(lr))
        except FloatingPointError as error:
            raise Diverged(_divergence(chain, str(error), group, store)) from None
        notes[index] = Notes()


def _save(store: Store, group: Chains, notes: list[Notes]) -> None:
    if not all(bool(p.isfinite().all()) for p in group.params):
        raise Diverged(_divergence(group.numbers[0], "a weight is not finite", group, store))
    store.write_checkpoint(
        {chain: group.checkpoint(i, {"notes": asdict(notes[i])}) for i, chain in enumerate(group.numbers)}
    )


def _divergence(chain: int, what: str, group: Chains, store: Store) -> str:
    return (
        f"Chain {chain}: {what} at step {group.step}, with lr={group.lr():.3g}. The samples before and the last good "
        f"checkpoint are kept in {store.path}. Sample anew with a smaller lr; `langevin doctor` estimates the largest "
        f"stable one."
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
    size = preflight.human(preflight.size_on_disk(store, plan))
    tqdm.write(f"{chains}; {plan.kept_per_chain() * plan.chains} samples, {size}, go to {store.path}", sys.stderr)


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


def _start(init: Init, chain: int, posterior: Posterior) -> dict[str, Tensor]:
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
        "float16": float16,
        "keep_last": keep_last,
        "tensors": {
            name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for name, t in tensors.items()
        },
        "environment": environment(_device(posterior)),
        "resumed": [],
    }


def _known(manifest: dict[str, Any], what: str, path: str | Path) -> Callable[..., Any]:
    if manifest[what] is None:
        raise RunError(
            f"The {what} of {path} was a function that can't be written down; give it again: "
            f"lv.resume({str(path)!r}, posterior, data, {what}=…)."
        )
    return read_recipe(manifest[what])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

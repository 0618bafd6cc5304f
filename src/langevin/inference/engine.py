"""The only loop: chains from their checkpoints to the end of the plan.

A step: fetch the batch of (seed, chain, step), compute the loss and its gradient, let the sampler move, note loss and
temperature, keep the sample if its turn has come, write a checkpoint if one is due. Weights change only in
`Chains.advance`, so whatever goes wrong elsewhere leaves a state from which the run continues.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from typing import Any

from tqdm.auto import tqdm

from langevin.errors import DivergenceError, RunError
from langevin.inference.chains import Chains, Weights
from langevin.inference.interrupt import Interrupt
from langevin.inference.settings import Cadence, RunningMeans, RunSettings, StepInfo
from langevin.inference.workshop import Workshop
from langevin.storage.directory import DirectoryStore

Callbacks = Sequence[Callable[[StepInfo], None]]


def save_starts(store: DirectoryStore, workshop: Workshop, starts: Mapping[int, Weights]) -> None:
    """Write the checkpoints of step 0, each file for chains that will advance together."""
    for block in workshop.place.blocks(workshop.plan.chains):
        new = [chain for chain in block if chain in starts]
        for together in workshop.together([0] * len(new)):
            numbers = [new[n] for n in together]
            group = workshop.chains(numbers, [starts[n] for n in numbers])
            group.leads = True
            _save(store, group, [RunningMeans() for _ in numbers])


def go_on(store: DirectoryStore, workshop: Workshop, callbacks: Callbacks, progress: bool, cadence: Cadence) -> None:
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


def _restored(store: DirectoryStore, workshop: Workshop, numbers: list[int]) -> tuple[Chains, list[RunningMeans]]:
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
        return group, [RunningMeans(**checkpoint.values["notes"]) for checkpoint in checkpoints]


@contextmanager
def _fitting(store: DirectoryStore, numbers: list[int]) -> Iterator[None]:
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
    store: DirectoryStore,
    group: Chains,
    notes: list[RunningMeans],
    plan: RunSettings,
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
            heats = _note(store, group, notes, plan, losses)
            lr = group.lr()
            whole = False
            try:
                group.advance()
            except FloatingPointError as error:
                raise DivergenceError(f"{_divergence(group.numbers[0], 'it diverged', group, store)} {error}") from None
            if group.step == plan.burn_in and plan.freeze:
                group.sampler.freeze()
            if plan.keeps(group.step) or group.step % 100 == 0 or group.step == plan.steps:
                group.check_replicas()
            if plan.keeps(group.step):
                _keep(store, group, notes, lr)
            whole = True
            if begin is not None:
                tqdm.write(f"compiled in {time.monotonic() - begin:.0f} s", sys.stderr)
                begin = None
            if cadence.due(group.step):
                _save(store, group, notes)
            for callback in callbacks:
                callback(
                    StepInfo(
                        group.numbers, group.step, plan, losses, lr, store.kept(), group.sampler, group.copy, heats
                    )
                )
            bar.update()
            store.beat(group.numbers, group.step)
            if not bar.disable and time.monotonic() - shown > 0.5:
                shown = time.monotonic()
                bar.set_postfix_str(_state_of_affairs(store, group, losses, notes), refresh=False)
            if group.agree(interrupt.requested):
                raise interrupt.exception()
        _save(store, group, notes)
    except (DivergenceError, RunError):
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


def _note(
    store: DirectoryStore, group: Chains, notes: list[RunningMeans], plan: RunSettings, losses: list[float]
) -> list[float]:
    """Note losses, checked; now and then read, note and return temperatures about the mean of late burn-in."""
    for chain, note, loss in zip(group.numbers, notes, losses, strict=True):
        if not math.isfinite(loss):
            raise DivergenceError(_divergence(chain, f"the loss is {loss}", group, store))
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


def _keep(store: DirectoryStore, group: Chains, notes: list[RunningMeans], lr: float) -> None:
    for index, chain in enumerate(group.numbers):
        try:
            if group.leads:
                store.add(chain, group.step, group.sample(index), notes[index].means(lr))
        except FloatingPointError as error:
            raise DivergenceError(_divergence(chain, str(error), group, store)) from None
        notes[index] = RunningMeans()


def _save(store: DirectoryStore, group: Chains, notes: list[RunningMeans]) -> None:
    if not group.leads:
        return
    checkpoints = {chain: group.checkpoint(i, {"notes": asdict(notes[i])}) for i, chain in enumerate(group.numbers)}
    for chain, checkpoint in checkpoints.items():
        for name, tensor in checkpoint.tensors.items():  # a momentum or a thermostat may be lost before any weight is
            if not bool(tensor.isfinite().all()):
                raise DivergenceError(_divergence(chain, f"{name} is not finite", group, store))
    store.write_checkpoint(checkpoints)


def _divergence(chain: int, what: str, group: Chains, store: DirectoryStore) -> str:
    spoilt = [name for name, p in zip(group.names, group.params, strict=True) if not bool(p.isfinite().all())]
    which = f" No longer finite: {', '.join(spoilt[:3])}{'…' if len(spoilt) > 3 else ''}." if spoilt else ""
    return (
        f"Chain {chain}: {what} at step {group.step}, with lr={group.lr():.3g}.{which} The samples before and the "
        f"last good checkpoint are kept in {store.path}. Sample anew with a smaller lr; `langevin doctor` estimates "
        f"the largest stable one."
    )


def _state_of_affairs(store: DirectoryStore, group: Chains, losses: list[float], notes: list[RunningMeans]) -> str:
    readings = sum(note.readings for note in notes)
    heat = f", T {sum(note.heat for note in notes) / readings:.2f}" if readings else ""
    which = f"chain {group.numbers[0]}" if len(group.numbers) == 1 else f"{len(group.numbers)} chains"
    return f"{which}, loss {sum(losses) / len(losses):.3g}{heat}, kept {store.kept()} + {store.waiting()} to be written"


def _bar(total: int, progress: bool) -> Any:
    interval = 0.2 if sys.stderr.isatty() else 10.0  # a log file wants few lines
    return tqdm(total=total, unit="step", disable=not progress, mininterval=interval, delay=1.0, dynamic_ncols=True)

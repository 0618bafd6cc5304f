"""The engine: the only loop. It takes chains from where they are to the last step.

A step: fetch the mini-batch of (seed, chain, step), compute the objective's loss and its gradient, let the stepper
move, record loss and temperature, save the sample if its turn has come, write a checkpoint if one is due. Weights
change only in `Chains.advance`, so whatever goes wrong elsewhere leaves a state from which the run continues.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from torch.optim import Optimizer

from langevin.core.batches import Batches
from langevin.core.objective import Objective
from langevin.core.parameters import all_finite
from langevin.core.progress import tqdm
from langevin.errors import DivergenceError, RunError
from langevin.inference import distributed, trial
from langevin.inference.callbacks import Callbacks, RunningMeans, StepInfo
from langevin.inference.chains import Chains, Weights
from langevin.inference.control_variate import ControlVariate
from langevin.inference.interrupt import Interrupt, say_stopped, where_to_resume
from langevin.inference.monitor import Monitor
from langevin.inference.one_chain import OneChain
from langevin.inference.probe import AT_FIRST, GRADIENTS, plan, read_gradients
from langevin.inference.readings import Readings, divergence
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.stacked_chains import StackedChains
from langevin.inference.steppers import SchedulerFactory, StepperFactory
from langevin.storage.base import Checkpoint, SampleStore
from langevin.storage.files import dtype_of


@dataclass
class Engine:
    """An objective, its data, what makes steppers and schedulers, the settings, and where this process stands."""

    objective: Objective
    batches: Batches
    make_stepper: StepperFactory
    make_scheduler: SchedulerFactory | None
    settings: RunSettings
    place: distributed.Place = distributed.ALONE
    control: ControlVariate | None = None
    title: str = ""  # of the progress bar of a stage
    monitor: Monitor | None = None
    _built: dict[tuple[int, ...], Chains] = field(default_factory=dict, repr=False)  # chains that wait for their turn
    _last: tuple[Chains, list[RunningMeans]] | None = field(default=None, repr=False)  # stacked chains, as they are now
    _beginning: dict[str, Any] = field(init=False, repr=False)  # where the data are before the first step

    def __post_init__(self) -> None:
        self._beginning = copy.deepcopy(self.batches.position())

    @cached_property
    def probe(self) -> Optimizer:
        """A stepper that is only looked at, for checks."""
        params = list(self.objective.trainable_parameters().values())
        return self.make_stepper(params, num_data=self.objective.num_data, seed=0, chain=0)

    # building chains

    def build(
        self, numbers: Sequence[int], starts: Sequence[Weights], kind: type[Chains] | None = None, *, last: bool = False
    ) -> Chains:
        """Chains of these numbers at these weights, on a copy of the objective, or, the last ones, on itself."""
        if kind is None:
            kind = OneChain if self.settings.mode == "sequential" else StackedChains
        own = self.settings.temperature_of(numbers[0])
        make_stepper = self.make_stepper if own is None else partial(self.make_stepper, temperature=own)
        return kind(
            self.objective if last else copy.deepcopy(self.objective),
            numbers,
            starts,
            self.batches,
            make_stepper,
            self.make_scheduler,
            seed=self.settings.seed,
            autocast=None if self.settings.autocast is None else dtype_of(self.settings.autocast),
            grad_accumulation_steps=self.settings.grad_accumulation_steps,
            compiled=self.settings.compile,
            replicas=self.place.replicas,
            control=self.control,
            burn_in=self.settings.burn_in,
        )

    def groups(self, steps: Mapping[int, int]) -> list[list[int]]:
        """Which chains advance together, by the step at which each is: one, or all at that step and temperature."""
        if self.settings.mode == "sequential":
            return [[chain] for chain in steps]
        together: dict[tuple[int, float | None], list[int]] = {}
        for chain, at in steps.items():
            together.setdefault((at, self.settings.temperature_of(chain)), []).append(chain)
        return [together[key] for key in sorted(together, key=lambda key: key[0])]

    def choose_mode(self, mode: str, starts: Sequence[Weights], compile: bool | None = False) -> str:
        """Set `settings.mode` and `settings.compile` and say why; chains that a trial has built are those that run."""
        if self.place.alone:
            choice = trial.choose(self, mode, starts, compile)
        else:  # the first process tries its own chains, and tells the others
            mine = len(self.place.blocks(self.settings.chains)[0])
            alone = replace(self, settings=replace(self.settings, chains=mine), place=distributed.ALONE, _built={})
            chosen, compiled, why = self.place.first(lambda: trial.choose(alone, mode, starts, compile))
            choice = trial.Choice(chosen, compiled, why)
        self.settings = replace(self.settings, mode=choice.mode, compile=choice.compiled)
        return choice.why

    def keep(self, chains: Chains) -> None:
        """Chains at their starts, to be the ones that run."""
        if self.settings.temperatures is not None:
            return  # they were tried at one temperature
        self._built[tuple(chains.numbers)] = chains

    def plan_probes(self, fraction: float, *, of_gradients: bool = False) -> None:
        """Set how often the gradient temperature is measured, and on how many examples, by the share of the time.

        `of_gradients`: by the share of the gradients of single examples instead.
        """
        weights = sum(p.numel() for p in self.objective.trainable_parameters().values())
        together = self.settings.mode == "vectorised"
        every, size = plan(
            fraction,
            steps=self.settings.steps - self.settings.burn_in,
            batch_size=getattr(self.batches, "batch_size", 1),
            num_data=self.batches.num_data or 1,
            weights=None if of_gradients else weights * (self.settings.chains if together else 1),
        )
        self.settings = replace(self.settings, probe_interval=every, probe_size=size)

    def probe_gradients(self) -> int:
        """Example-gradients of the readings of the gradient temperature, all chains."""
        settings = self.settings
        readings = (settings.steps - settings.burn_in) // settings.probe_interval if settings.probe_interval else 0
        return (readings * GRADIENTS + bool(readings) * AT_FIRST) * settings.probe_size * settings.chains

    # starting and continuing

    def save_starts(self, store: SampleStore, starts: Mapping[int, Weights]) -> None:
        """Write the checkpoints of step 0: weights (and the state of a stateful loader), a file for each group."""
        values = {"position": self._beginning} if self._beginning else {}
        for block in self.place.blocks(self.settings.chains):
            new = {chain: 0 for chain in block if chain in starts}
            for numbers in self.groups(new):
                weights = {c: {f"weights/{name}": t for name, t in starts[c].items()} for c in numbers}
                store.write_checkpoint({c: Checkpoint(0, weights[c], values) for c in numbers})

    def run(
        self,
        store: SampleStore,
        callbacks: Callbacks,
        progress: bool,
        interval: CheckpointInterval,
    ) -> None:
        """Take every chain from its checkpoint, which may be that of step 0, to the last step."""
        at = store.checkpoint_steps()
        chains = self.settings.chains
        if missing := list(islice((chain for chain in range(chains) if chain not in at), 10)):
            raise RunError(f"{store.name} has no checkpoint of the chains {missing}, so they can't continue.")
        mine = {chain: at[chain] for chain in self.place.chains_of(chains)}
        groups = self.groups(mine)
        total, taken = self.settings.steps * len(groups), sum(at[numbers[0]] for numbers in groups)
        with Interrupt() as interrupt, _progress_bar(taken, total, progress, self.place, self.title) as bar:
            for numbers in groups:
                if at[numbers[0]] == self.settings.steps:
                    continue
                group, means = self._continued(store, numbers, last=numbers is groups[-1])
                self._advance(store, group, means, callbacks, bar, interval, interrupt)

    def _continued(self, store: SampleStore, numbers: list[int], last: bool) -> tuple[Chains, list[RunningMeans]]:
        """Chains that were built already, or as their checkpoints left them."""
        if (built := self._built.pop(tuple(numbers), None)) is not None:
            return built, [RunningMeans() for _ in numbers]
        (chains, means), self._last = self._last or (None, []), None
        if chains is not None and chains.numbers == numbers and chains.step == store.checkpoint_steps()[numbers[0]]:
            return chains, means
        checkpoints = store.checkpoints(numbers)
        with _reading_checkpoints(store, numbers):
            shapes = {name: spec["shape"] for name, spec in store.manifest["tensors"].items()}
            weights = [
                {name: checkpoint.tensors[f"weights/{name}"].reshape(shape) for name, shape in shapes.items()}
                for checkpoint in checkpoints
            ]
        group = self.build(numbers, weights, last=last)
        with _reading_checkpoints(store, numbers):
            group.restore(checkpoints)
            if self.monitor is not None:
                self.monitor.restore(
                    {c: k.values.get("watched", []) for c, k in zip(numbers, checkpoints, strict=True)}
                )
            return group, [RunningMeans(**checkpoint.values.get("means", {})) for checkpoint in checkpoints]

    def restored(self, store: SampleStore, numbers: list[int]) -> Chains:
        """These chains as their checkpoints left them."""
        return self._continued(store, numbers, last=False)[0]

    def _advance(
        self,
        store: SampleStore,
        group: Chains,
        means: list[RunningMeans],
        callbacks: Callbacks,
        bar: Any,
        interval: CheckpointInterval,
        interrupt: Interrupt,
    ) -> None:
        """Take a group of chains to the last step."""
        settings = self.settings
        compiling_since = time.monotonic() if settings.compile and not (bar.disable or group.warm) else None
        complete = True  # the weights are those of a whole number of steps, and their sample, if one was due, is saved
        shown = 0.0
        readings = Readings(store, group, means)
        try:
            while group.step < settings.steps:
                probing = group.leads and settings.probes(group.step)
                probed = read_gradients(group, settings.probe_size) if probing else {}
                losses = group.losses_and_gradients(whole=settings.measures_temperature(group.step))
                readings.record(losses, probed, settings)
                lr = group.lr()
                complete = False
                try:
                    group.advance()
                except FloatingPointError as error:
                    raise DivergenceError(f"{divergence(group, store, 0, 'it diverged')} {error}") from None
                if rest := group.prior_losses():
                    readings.add_to_losses(rest)
                saving, checkpointing = settings.saves(group.step), interval.is_due(group.step)
                readings.read_if_due(saving or checkpointing or bool(callbacks) or group.step == settings.burn_in)
                if group.step == settings.burn_in:
                    means[:] = [RunningMeans() for _ in means]  # the first sample's statistics are not those of burn-in
                    if settings.freeze:
                        group.freeze()
                if saving or group.step % 100 == 0 or group.step == settings.steps:
                    group.check_replicas()
                if saving:
                    _save_samples(store, group, means, lr)
                complete = group.warm = True
                if compiling_since is not None:
                    tqdm.write(f"compiled in {time.monotonic() - compiling_since:.0f} s", sys.stderr)
                    compiling_since = None
                if self.monitor is not None and self.monitor.is_due(group.step):
                    self.monitor.observe(group)
                if checkpointing:
                    self._save_checkpoint(store, group, means)
                if callbacks:
                    info = StepInfo(
                        group.numbers,
                        group.step,
                        settings,
                        readings.losses,
                        lr,
                        store.saved(),
                        group.stepper,
                        group.copy,
                        readings.temperatures,
                    )
                    for callback in callbacks:
                        callback(info)
                bar.update()
                store.heartbeat(group.numbers, group.step)
                if not bar.disable and time.monotonic() - shown > 0.5:
                    shown = time.monotonic()
                    readings.read()
                    bar.set_postfix_str(_status_line(store, group, readings.losses, means), refresh=False)
                if group.agree(interrupt.requested):
                    raise interrupt.exception()
            readings.read()
            self._save_checkpoint(store, group, means)
            self._last = (group, means) if group.stacked else None  # a run that is extended need not build them again
        except (DivergenceError, RunError):
            with suppress(Exception):
                store.flush()
                if store.path is None and store.saved():
                    tqdm.write(f"The samples before it are saved: {where_to_resume(store)}.", sys.stderr)
            raise
        except BaseException as error:
            with suppress(Exception):
                if complete:
                    readings.read()
                    self._save_checkpoint(store, group, means)
                else:
                    store.flush()
            if not self.title:  # stages have titles, and the run that they belong to says where it is
                say_stopped(f"Stopped at step {group.step} of {settings.steps}; {where_to_resume(store)}.", error)
            raise

    def _save_checkpoint(self, store: SampleStore, group: Chains, means: list[RunningMeans]) -> None:
        if not group.leads:
            return
        checkpoints = {}
        for index, chain in enumerate(group.numbers):
            watched = {} if self.monitor is None else {"watched": self.monitor.series.get(chain, [])}
            checkpoints[chain] = group.checkpoint(index, {"means": asdict(means[index]), **watched})
        for index, checkpoint in enumerate(checkpoints.values()):
            for name, tensor in checkpoint.tensors.items():  # a momentum or a thermostat may be lost before any weight
                if not all_finite(tensor):
                    raise DivergenceError(divergence(group, store, index, f"{name} is not finite"))
        store.write_checkpoint(checkpoints)


@contextmanager
def _reading_checkpoints(store: SampleStore, numbers: list[int]) -> Iterator[None]:
    """Whatever goes wrong inside means that a checkpoint is not of this model and sampler."""
    try:
        yield
    except RunError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        raise RunError(
            f"The checkpoint of the chains {numbers} in {store.name} does not fit this model and sampler, so they "
            f"can't continue from it ({type(error).__name__}: {error})."
        ) from error


def _save_samples(store: SampleStore, group: Chains, means: list[RunningMeans], lr: float) -> None:
    for index, chain in enumerate(group.numbers):
        try:
            if group.leads:
                store.add(chain, group.step, group.sample(index), means[index].means(lr) | group.precisions(index))
        except FloatingPointError as error:
            raise DivergenceError(divergence(group, store, index, str(error))) from None
        means[index] = RunningMeans()


def _status_line(store: SampleStore, group: Chains, losses: list[float], means: list[RunningMeans]) -> str:
    readings = sum(mean.readings for mean in means)
    temperature = f", T {sum(mean.temperature for mean in means) / readings:.2f}" if readings else ""
    which = f"chain {group.numbers[0]}" if len(group.numbers) == 1 else f"{len(group.numbers)} chains"
    buffered = f", {store.buffered()} buffered" if store.buffered() else ""
    return f"{which}, loss {sum(losses) / len(losses):.3g}{temperature}, {store.saved()} saved{buffered}"


def _progress_bar(taken: int, total: int, progress: bool, place: distributed.Place, title: str = "") -> Any:
    """From the steps that were taken before, which say nothing about the rate."""
    hidden = not (progress and place.leads)
    return tqdm(
        initial=taken,
        total=total,
        desc=title or None,
        leave=not title,
        unit="step",
        disable=hidden,
        delay=1.0,
        dynamic_ncols=True,
    )

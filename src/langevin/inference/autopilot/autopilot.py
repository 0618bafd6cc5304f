"""`lv.sample(posterior, data)`: warm start, burn-in, sampling, one after another, each from where it was left."""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from langevin.core.batches import Batches, as_batches, batch_size_of
from langevin.core.full_batches import make_batches
from langevin.core.posterior import Posterior
from langevin.core.progress import tqdm
from langevin.core.user_level import user_level
from langevin.ensembles.tuning import Decision
from langevin.errors import DivergenceError
from langevin.inference.autopilot import budget as budgets
from langevin.inference.autopilot import stages
from langevin.inference.autopilot import temperature as ladder
from langevin.inference.autopilot.burn_in import SETTLING, BurnIn, fewest_settling, refuse_diverged, run_burn_in, settle
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.evaluate import Evaluation
from langevin.inference.autopilot.plan import Plan
from langevin.inference.autopilot.rates import Rates
from langevin.inference.autopilot.scales import WithMetric
from langevin.inference.autopilot.spending import Spending
from langevin.inference.autopilot.stages import StageStores
from langevin.inference.autopilot.stopping import FEWEST, Look, Watch, met_twice, numbers_of_samples
from langevin.inference.autopilot.warm_start import EPOCHS, WarmStart, by_chain, of_chains, run_warm_start
from langevin.inference.callbacks import Callbacks
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.probe import AT_FIRST, can_probe
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.starts import Init, starting_points
from langevin.inference.steppers import sampler_factory, write_recipe
from langevin.samplers import SAMPLERS
from langevin.storage.base import SampleStore

_FIRST_LEG = 1000  # steps of burn-in, at most
_SHORTEST_LEG = 50
_BURN_IN_SHARE = 0.5  # of the steps, at most
_EXPLORING_SHARE = 0.6  # of large steps, with full batches: a chain that is not there yet gains more than it samples
_SAMPLING_SHARE = 0.25  # at least
_SAMPLES = 250  # of each chain, at most
_LOWERED = 3  # times that a rate is lowered
_EXPLORES = 10**9  # steps of burn-in, of which no one knows the number yet
_DECIDE = 100  # held-out examples: with 90, 0.03 was taken where T = 1 predicts test data better
_PROBES = 0.02  # share of the gradients for the gradient thermometer


@dataclass
class Autopilot:
    """A posterior, its data, a plan, and the store of the run to be."""

    posterior: Posterior
    data: Any
    plan: Plan
    store: SampleStore
    callbacks: Callbacks
    progress: bool
    interval: CheckpointInterval
    init: Init = None  # instead of a warm start

    def __post_init__(self) -> None:
        self._stores = StageStores(self.store.path)
        size = None if isinstance(self.data, torch.utils.data.DataLoader) else 1
        everything = as_batches(self.data, size, self.plan.seed, device_of(self.posterior))
        self._parts = DataParts.of(self.data, everything, self.plan.seed)
        self._sampled, self._its_data = self.posterior, self.data
        if self.plan.temperature == "auto":  # what is held out judges temperatures, and stays out
            if self._parts.held_out is None:
                raise ValueError(
                    'temperature="auto" holds out some of the data, so it needs at least 20 examples that can be '
                    "indexed: pass tensors, or the data set of a DataLoader, loader.dataset; or give a temperature."
                )
            if (out := batch_size_of(self._parts.held_out[1])) < _DECIDE:
                warnings.warn(
                    f'temperature="auto" chooses by {out} held-out examples, which decide little: the chosen T may be '
                    f"far from the best one. With so few give a temperature: temperature=1.",
                    stacklevel=user_level(),
                )
            self._sampled = copy.deepcopy(self.posterior)
            self._sampled.num_data, self._its_data = self._parts.num_training, self._parts.training
            self.store.manifest["num_sampled"] = self._parts.num_training
        self._rates = Rates(
            self._sampled, self._its_data, self._parts, self.plan, self._about, self._decide, self.progress
        )

    def run(self) -> None:
        """All stages, from where they were left."""
        if self._about.get("stage") != "sampling":
            warm = self._warm_start()
            burnt = self._search_temperature(warm) if self.plan.temperature == "auto" else self._burn_in(warm, 1.0)
            self._begin_sampling(burnt, warm)
        self._sample()

    @property
    def _about(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.manifest["autopilot"]
        return found

    def decide_plan(self) -> None:
        """Say what was planned."""
        self._decide("plan", 0, f"{self.plan.sampler}, {self.plan.chains} chains", self.plan.why)

    # stages

    def _warm_start(self) -> WarmStart:
        self._enter("warm start")
        if self.init is not None or self._about.get("given_start"):
            return self._given_start()
        warm = run_warm_start(
            self.posterior,
            self._parts,
            self.plan.chains,
            seed=self.plan.stage_seed(1),
            mode=self.plan.mode,
            batch_size=self.plan.batch_size,
            most=budgets.warm_steps(self.plan),
            stores=self._stores,
            interval=self.interval,
            progress=self.progress,
        )
        if self._stage("warm start"):
            self.store.write_fixed(by_chain(dict(enumerate(warm.weights))), "warm_start")
            self._spending.add("warm start", self.plan.chains * warm.example_gradients)
            self._decide("warm start", warm.steps, f"{self.plan.chains} optima", warm.found)
        return warm

    def _given_start(self) -> WarmStart:
        """Where the user says, which is kept for a resume; nothing is trained."""
        if not self._about.get("given_start"):
            starts = starting_points(self.init, range(self.plan.chains), self.posterior, self.plan.seed)
            self.store.write_fixed(by_chain(starts), "starts")
            self._about["given_start"] = True
            self._decide("warm start", 0, "none: chains start as init says", "")
        weights = of_chains(self.store.fixed("starts"), self.plan.chains)
        return WarmStart(weights, [], EPOCHS * self.posterior.num_data, 0, "given", pretrained=True)

    def _search_temperature(self, warm: WarmStart) -> BurnIn:
        """Burn-in and some samples at each temperature; the choice, and its chains."""
        assert self._parts.held_out is not None
        held_out = Evaluation(self.posterior, self._parts.held_out)
        densities, burnt = {}, {}
        for temperature in ladder.LADDER:
            burnt[temperature] = self._burn_in(warm, 1 / (2 * len(ladder.LADDER)), temperature)
            store = self._tried(burnt[temperature], temperature)
            densities[temperature] = ladder.mixture_density(store, held_out)
        tried = sum(each.steps + ladder.steps_tried(each.steps) for each in burnt.values())
        chosen, rungs = ladder.choose_temperature(densities)
        if self._stage("temperature"):
            self._about["by_temperature"] = [rung._asdict() for rung in rungs]
            self._about.update({"temperature": chosen, "tried": tried - burnt[chosen].steps})
            out, others = batch_size_of(self._parts.held_out[1]), self._parts.num_training
            why = f"loss of {out} held-out examples by T: {ladder.shown(rungs)}; the largest T within one standard "
            why += f"error of the best; they stay out, and the samples are those of the other {others:,}"
            self._decide("temperature", 0, f"T = {chosen:g}", why)
        return burnt[chosen]

    def _tried(self, burnt: BurnIn, temperature: float) -> SampleStore:
        """A few samples of each chain at a temperature."""
        name = f"trial-{temperature:g}"
        store = self._stores.find(name)
        engine = self._engine(self.plan.stage_seed(3), temperature)
        steps = ladder.steps_tried(burnt.steps)
        engine.settings = replace(engine.settings, steps=steps, thin=steps // ladder.TRIED, mode=burnt.mode)
        if store is None:
            store = self._stores.create(name, make_manifest(engine, self.posterior, inputs=inputs_of(engine.batches)))
            with store.writing():
                store.write_fixed(self.posterior.fixed_tensors())
                stages.hand_over(engine, store, burnt.checkpoints)
                store.write_manifest()
        with store.writing():
            title = f"T = {temperature:g}"
            stages.advance(engine, store, steps, title=title, progress=self.progress, interval=self.interval)
            store.flush()
        if self._stage(name):
            self._spending.add("temperature", self._evaluated(name))
        return store

    def _burn_in(self, warm: WarmStart, share: float, temperature: float | None = None) -> BurnIn:
        """Burn-in at a temperature; a rate at which it diverges is lowered, and it starts again."""
        seed = self.plan.stage_seed(2)
        if not self.plan.full_batch:
            self._enter("search for the rate")
        self._rates.find(warm.weights, self._batches(seed), temperature, lambda: self._spending.affordable(warm))
        while True:
            try:
                return self._burn_in_at_rate(warm, share, temperature)
            except DivergenceError as error:
                name = self._burn_in_name(temperature)
                self._spending.add_diverged(self._evaluated(name) + self._evaluated(_settling(name)))
                if not self._rates.lower(temperature, _LOWERED, str(error).partition(". ")[0]):
                    raise

    def _burn_in_name(self, temperature: float | None) -> str:
        lowered = self._rates.lowered(temperature)
        at = "" if temperature is None else f"-{temperature:g}"
        return f"burn-in{at}" + (f"-lower-{lowered}" if lowered else "")

    def _evaluated(self, stage: str) -> int:
        """Example-gradients of a stage, all chains; 0 if it has not begun."""
        store = self._stores.find(stage)
        return 0 if store is None else self._batch * stages.evaluations(store.checkpoints(range(self.plan.chains)))

    def _burn_in_at_rate(self, warm: WarmStart, share: float, temperature: float | None) -> BurnIn:
        self._enter("burn-in")
        engine = self._engine(self.plan.stage_seed(2), temperature, after=False)
        name = self._burn_in_name(temperature)
        total = self._spending.steps_for(name, warm)
        self.store.write_manifest()
        settles = SAMPLERS.named(self.plan.sampler).explores
        most = int((_EXPLORING_SHARE if settles else _BURN_IN_SHARE) * share * total)
        if settles or self._rates.by_noise:  # of few steps a quarter is for samples all the same
            most = min(most, int((1 - _SAMPLING_SHARE) * share * total) - SETTLING)
            most = min(most, total - SETTLING - FEWEST - self._spending.steps_foreseen())
        most = max(2 * _SHORTEST_LEG, most)
        first = min(_FIRST_LEG, max(_SHORTEST_LEG, most // 3))
        if settles:
            engine.make_stepper = partial(engine.make_stepper, adapt_steps=_EXPLORES)
        wanted = self.plan.full_batch or self._rates.by_noise
        if wanted and (metrics := self._rates.metrics(warm.weights)) is not None:
            engine.make_stepper = WithMetric(engine.make_stepper, metrics)
        engine.settings = replace(engine.settings, steps=total, mode=self.plan.mode)
        burnt = run_burn_in(
            engine,
            self.posterior,
            Evaluation(self.posterior, self._parts.watched),
            dict(enumerate(warm.weights)),
            name=name,
            compile=self.plan.compile,
            first=first,
            most=most,
            freeze=not settles,
            stores=self._stores,
            interval=self.interval,
            progress=self.progress,
        )
        self._refuse_diverged(warm, burnt, temperature)
        if self._rates.by_noise:
            names = list(self._sampled.trainable_parameters())
            burnt = self._rates.after_burn_in(burnt, names, engine.batches, temperature, total)
        if settles or self._rates.by_noise:
            burnt = settle(
                self._engine(self.plan.stage_seed(5), temperature),
                self.posterior,
                burnt,
                self._rates.renewed if settles else None,
                name=_settling(name),
                least=fewest_settling(self.plan.sampler, total),
                stores=self._stores,
                interval=self.interval,
                progress=self.progress,
            )
            self._refuse_diverged(warm, burnt, temperature)
        if self._stage(name):
            self._spending.add("burn-in", self._batch * burnt.evaluations)
            decided = "stationary" if burnt.settled else "not stationary, but its share of the budget is spent"
            at = "" if temperature is None else f" at T = {temperature:g}"
            how = f"{burnt.mode}{', compiled' if burnt.compiled else ''}"
            self._decide("burn-in", burnt.steps, decided + at, f"{burnt.found}; chains are {how}")
        return burnt

    def _refuse_diverged(self, warm: WarmStart, burnt: BurnIn, temperature: float | None) -> None:
        """Raise if a chain is far above its start; full-batch samplers go back by themselves."""
        if not self.plan.full_batch and not self.posterior.precisions.priors:
            target = float(self.plan.temperature if temperature is None else temperature)
            watched = Evaluation(self.posterior, self._parts.watched)
            refuse_diverged(self._sampled, watched, warm.weights, burnt, target)

    def _begin_sampling(self, burnt: BurnIn, warm: WarmStart) -> None:
        """Chains as burn-in left them, in the store of the run."""
        engine = self._engine(self.plan.seed)
        self._spending.add_metric_and_rate()
        left = self._spending.affordable(warm) - burnt.steps - self._spending.steps_besides()
        left -= 0 if self.plan.most_steps is not None else self._about.get("tried", 0)
        total = max(int(left / (1 + _PROBES)), FEWEST) if self.plan.steps is None else self.plan.steps
        thin = max(1, total // _SAMPLES)
        engine.settings = replace(
            engine.settings,
            steps=FEWEST * thin,
            thin=thin,
            mode=burnt.mode,
            compile=burnt.compiled,
            measure_temperature=True,
            freeze=False,  # what adapts is frozen already
        )
        if can_probe(self._sampled, engine.probe, engine.batches):
            engine.plan_probes(_PROBES, of_gradients=self.plan.counts_gradients)
            if self.plan.counts_gradients and self.plan.steps is None:
                total = max(total - self._spending.in_steps(AT_FIRST * engine.settings.probe_size), FEWEST)
        self.store.drop_checkpoints(range(self.plan.chains))
        stages.hand_over(engine, self.store, burnt.checkpoints)
        manifest = self.store.manifest
        manifest["settings"] = asdict(engine.settings)
        manifest["sampler"] = write_recipe(engine.make_stepper)
        self._about.update({"stage": "sampling", "most": total, "looks": []})
        self.store.write_manifest()
        self._decide("sampling", 0, f"every {thin} steps a sample, at most {total // thin} a chain", "")

    def _sample(self) -> None:
        """Legs until what was asked for is met twice in succession."""
        manifest = self.store.manifest
        engine = self._engine(self.plan.seed)
        engine.settings = RunSettings(**manifest["settings"])
        thin, most, looks = engine.settings.thin, self._about["most"], self._about["looks"]
        watch = Watch(Evaluation(self.posterior, self._parts.watched))
        lengths = numbers_of_samples(most // thin)
        for leg in range(len(looks), len(lengths)):
            if self.plan.steps is None and met_twice(looks):
                break
            stages.advance(
                engine,
                self.store,
                lengths[leg] * thin,
                title="sampling",
                callbacks=self.callbacks,
                progress=self.progress,
                interval=self.interval,
            )
            look = watch.look(self.store)
            looks.append({**look._asdict(), "enough": look.enough})
            self.store.write_manifest()
            if self.progress:
                tqdm.write(f"  {lengths[leg]} of at most {lengths[-1]} samples a chain: {look}", sys.stderr)
        if self._about["stage"] != "done":
            last = looks[-1]
            found = Look(**{name: last[name] for name in Look._fields})
            decided = "enough" if met_twice(looks) else "the budget is spent"
            spent = self._batch * stages.evaluations(self.store.checkpoints(range(self.plan.chains)))
            self._spending.add("sampling", spent + engine.probe_gradients())
            self._decide("sampling", engine.settings.steps, f"stop: {decided}", str(found))
            self._about["stage"] = "done"
            self.store.write_manifest()

    # parts of them

    @cached_property
    def _batch(self) -> int:
        """Examples of a batch of the sampler."""
        return batch_size_of(self._batches(self.plan.seed).peek()[1])

    @cached_property
    def _spending(self) -> Spending:
        return Spending(self._about, self.plan, self._batch, self._decide)

    def _engine(self, seed: int, temperature: float | None = None, *, after: bool = True) -> Engine:
        """For a stage; with its seed, and its temperature, if it is yet to be chosen; `after` burn-in or not."""
        if temperature is None:
            temperature = self._about.get("temperature")
        chosen = self._rates.of(temperature, after=after)
        if temperature is not None:
            chosen["temperature"] = temperature
        make = sampler_factory(self.plan.sampler, self.plan.options | chosen)
        settings = stages.settings_of(self.plan.chains, seed, self._size)
        return Engine(copy.deepcopy(self._sampled), self._batches(seed), make, None, settings)

    @property
    def _size(self) -> Any:
        return "full" if self.plan.full_batch else self.plan.batch_size

    def _batches(self, seed: int) -> Batches:
        return make_batches(self._its_data, self._size, seed, device_of(self.posterior))

    # words

    def _enter(self, stage: str) -> None:
        """Note in which stage the run is, for those who ask for its status."""
        if self._about.get("stage") != stage:
            self._about["stage"] = stage
            self.store.write_manifest()

    def _stage(self, name: str) -> bool:
        """Note that a stage is complete; False if that was noted before."""
        passed = self._about.setdefault("passed", [])
        if name in passed:
            return False
        passed.append(name)
        return True

    def _decide(self, stage: str, step: int, decided: str, why: str) -> None:
        decision = Decision(stage, step, decided, why)
        self.store.manifest["tuning"] = [*self.store.manifest.get("tuning", []), asdict(decision)]
        self.store.write_manifest()
        if self.progress:
            tqdm.write(str(decision), sys.stderr)


def _settling(burn_in: str) -> str:
    """The stage after a burn-in."""
    return burn_in.replace("burn-in", "settling")

"""A run: samples of the weights, with predictions and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from langevin.core.arguments import COUNT, FRACTION, NATURAL, SEED, validated
from langevin.core.posterior import Posterior
from langevin.core.statistics import Estimate, mean_and_error
from langevin.diagnostics.convergence import Convergence, convergence, equal_lengths, weight_convergence
from langevin.diagnostics.directions import direction_temperatures
from langevin.diagnostics.inference_data import inference_data
from langevin.diagnostics.stationarity import Stationarity, stationarity, watched
from langevin.diagnostics.target_temperature import Temperatures
from langevin.diagnostics.temperature import Ratio, over_tensors, ratio_of_means, virial_temperature
from langevin.diagnostics.verdict import Verdict
from langevin.ensembles import thermometers
from langevin.ensembles.ensemble import Ensemble, WeightList, Weights
from langevin.ensembles.prediction import ClassPrediction, Prediction, outputs_of
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.summary import judge, summary
from langevin.ensembles.tuning import Tuning
from langevin.errors import RunError
from langevin.samplers import SAMPLERS, Sampler
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import copy_store
from langevin.storage.stored_samples import StoredSamples

_PROBED = 12  # numbers predicted for the training inputs that a verdict compares


class Run(Ensemble):
    """Samples of the weights, read lazily; `run[0]` maps names to tensors, `run[100:]` is a run.

    The samples of the chains are concatenated; `run.chain(c)` contains those of one.
    """

    def __init__(
        self, store: SampleStore, predictor: Predictor, samples: StoredSamples | None = None, probe: Any = None
    ) -> None:
        self._store, self._predictor, self._probe = store, predictor, probe
        self._whole = samples is None
        if samples is None:
            samples = StoredSamples(store)
            if self.chain_temperatures is not None:
                samples = self._of_temperature(samples, self.chain_temperatures[0])
        self._samples = samples

    # ensemble

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """The model, with all samples."""
        return [(self._predictor, self._samples.stacks)]

    @property
    def samples(self) -> StoredSamples:
        """The samples with their steps and recorded statistics."""
        return self._samples

    def _member(self, index: int) -> Weights:
        return self._samples[index]

    def _subset(self, indices: range) -> Run:
        return self._some(self._samples[indices.start : None if indices.stop < 0 else indices.stop : indices.step])

    def _some(self, samples: StoredSamples) -> Run:
        return Run(self._store, self._predictor, samples, self._probe)

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> Run: ...

    def __getitem__(self, index: int | slice) -> Weights | Run:
        return super().__getitem__(index)  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Weights]:
        return iter(self._samples)

    @validated(number=NATURAL)
    def chain(self, number: int) -> Run:
        """The samples of one chain."""
        whole = self._whole and self.chain_temperatures is not None
        return self._some((StoredSamples(self._store) if whole else self._samples).of_chain(number))

    @property
    def chain_temperatures(self) -> list[float] | None:
        """The temperatures of the chains, in turn, if they differ; the run has the samples of those at the first."""
        found = self.manifest.get("settings", {}).get("temperatures")
        return found if isinstance(found, list) and found else None

    @validated()
    def at_temperature(self, temperature: float) -> Run:
        """The samples of the chains at another temperature: `lv.sample(…, temperature=[1, 0.3, 0.1])`."""
        known = self.chain_temperatures or [self.target_temperature]
        if temperature not in known:
            raise ValueError(f"No chain has temperature {temperature}; they have {known}.")
        if self.chain_temperatures is None:
            return self
        return self._some(self._of_temperature(StoredSamples(self._store), temperature))

    def _of_temperature(self, samples: StoredSamples, temperature: float) -> StoredSamples:
        turns = self.chain_temperatures or []
        return samples.where(lambda record: turns[record.chain % len(turns)] == temperature)

    # records

    @property
    def path(self) -> Path | None:
        """The directory of the run; None if it is in memory."""
        return self._store.path

    @property
    def store(self) -> SampleStore:
        """The store of samples and checkpoints."""
        return self._store

    @property
    def manifest(self) -> dict[str, Any]:
        """Configuration, versions, seed, names and shapes."""
        return self._store.manifest

    @property
    def chains(self) -> list[int]:
        """The numbers of the chains that have samples."""
        return self._samples.chains

    @property
    def steps(self) -> list[int]:
        """The step of each sample."""
        return self._samples.steps

    @property
    def corrupted(self) -> dict[str, str]:
        """Files of the run that are corrupted, wholly or in part, and why; corrupted samples are left out.

        Samples with values that are not finite are found when they are read (`check` reads all).
        """
        return self._samples.corrupted

    def check(self) -> dict[str, str]:
        """Read every sample once, leave out those with NaN or infinity, and return `corrupted`."""
        return self._samples.check()

    @property
    def traces(self) -> list[str]:
        """Names for `trace`: "loss", "lr", "temperature", "temperature/NAME" of each tensor; for samplers with momentum
        also "kinetic" and "thermostat".
        """
        return self._samples.traces

    @validated()
    def trace(self, name: str) -> dict[int, list[float]]:
        """The values recorded with the samples of each chain: "loss", "lr", "temperature" or another of `traces`.

        All but lr are means over the steps since the previous sample; NaN if nothing was recorded.
        """
        return self._samples.trace(name)

    @property
    def is_whole(self) -> bool:
        """Whether this is a run as it was sampled; a slice or a chain is a part, which can't be resumed."""
        return self._whole

    @validated()
    def save(self, path: str | Path) -> Run:
        """Write these samples to a new directory, and return the stored run. Only a whole run can be resumed there."""
        manifest = self.manifest if self.is_whole else {**self.manifest, "recorded": True}
        target = DirectoryStore.create(path, manifest)
        copy_store(self._store, target, None if self.is_whole else self._samples.records)
        return Run(target, self._predictor, probe=self._probe)

    # autopilot

    @property
    def tuning(self) -> Tuning:
        """What the autopilot decided, at which step, and why; empty if all settings were given."""
        return Tuning.of_manifest(self.manifest)

    @property
    def warm_start(self) -> Ensemble:
        """The optima at which the autopilot started the chains: a deep ensemble."""
        try:
            tensors = self._store.fixed("warm_start")
        except (RunError, OSError):
            raise RunError(
                "The run has no warm start: its chains started where they were told to. lv.sample(posterior, data) "
                "makes one."
            ) from None
        chains = sorted({int(name.partition("/")[0]) for name in tensors})
        names = self.manifest["tensors"]
        return WeightList(self._predictor, [{name: tensors[f"{c}/{name}"] for name in names} for c in chains])

    # temperature

    @property
    def sampler(self) -> type[Sampler] | None:
        """The sampler's class, if it is registered."""
        recipe = self.manifest.get("sampler") or {}
        return SAMPLERS.exports().get(recipe.get("name", ""))

    @property
    def target_temperature(self) -> float:
        """The sampler's T; NaN if it injects no noise or is not registered."""
        if self.sampler is None or not self.sampler.injects_noise:
            return math.nan
        return float(self.manifest["sampler"]["options"].get("temperature", 1.0))

    @property
    def kinetic_is_by_construction(self) -> bool:
        """Whether a thermostat makes the kinetic temperature equal T by construction, whatever the weights do."""
        recipe = self.manifest.get("sampler") or {"name": "", "options": {}}
        default = {"SGNHT": None, "ATMC": "auto"}
        name = recipe["name"]
        return name in default and recipe["options"].get("max_speed", default[name]) is None

    def temperature(self) -> Estimate:
        """The virial temperature over all weights and chains, to be compared with `target_temperature`.

        It weighs all directions alike, and settles as slowly as the softest of them. Measured about the mean of the
        other chains, and of a single chain about its starting point.
        """
        return virial_temperature(*self.temperature_readings().values())

    def temperatures(self) -> dict[str, Estimate]:
        """The virial temperature of each tensor; each should be T."""
        return {name: virial_temperature(*chains.values()) for name, chains in self._virial.items()}

    def temperature_readings(self) -> dict[int, list[float]]:
        """What `temperature` is the mean of: readings of each chain, means over equal parts of the run."""
        sizes = {name: math.prod(spec["shape"]) for name, spec in self.manifest["tensors"].items()}
        return over_tensors(self._virial, sizes) if self._virial else {}

    @cached_property
    def _virial(self) -> dict[str, dict[int, list[float]]]:
        return thermometers.virial_readings(self)

    def gradient_temperature(self) -> Estimate:
        """The gradient temperature over all weights, E‖∇U‖²/E[tr ∇²U], to be compared with `target_temperature`.

        It weighs directions by their curvature, so it shows whether stiff ones are too hot. NaN if it was not measured:
        `sample(probe=0)`, a DataLoader, or a run that is too short.
        """
        return ratio_of_means(thermometers.probed(self, thermometers.probed_tensors(self)))

    def gradient_temperatures(self) -> dict[str, Estimate]:
        """The gradient temperature of each tensor; each should be T."""
        return {name: ratio_of_means(thermometers.probed(self, [name])) for name in thermometers.probed_tensors(self)}

    def stiffest_temperature(self) -> Estimate:
        """The gradient temperature along the stiffest direction of each chain."""
        name = " along the stiffest direction"
        if f"gradient{name}" not in self.traces:
            return Estimate(math.nan, math.nan)
        return ratio_of_means(Ratio(self.trace(f"gradient{name}"), self.trace(f"curvature{name}")))

    @validated()
    def all_temperatures(self, posterior: Posterior | None = None, data: Any = None) -> Temperatures:
        """The readings of all thermometers, to be judged by the worst: `run.all_temperatures().judge()`.

        With the posterior and the training data also along the softest directions, at the cost of a pass over the data
        per sample; see `langevin.diagnostics.directions`.
        """
        if (posterior is None) != (data is None):
            raise ValueError("posterior and data are needed together: run.summary(posterior, data).")
        measured = posterior is not None and data is not None
        return Temperatures(
            target=self.target_temperature,
            virial=self.temperature(),
            gradient=self.gradient_temperature(),
            stiffest=self.stiffest_temperature(),
            kinetic=self.kinetic_temperature(),
            kinetic_by_construction=self.kinetic_is_by_construction,
            virial_by_tensor=self.temperatures(),
            gradient_by_tensor=self.gradient_temperatures(),
            softest=direction_temperatures(self, posterior, data) if measured else [],  # type: ignore[arg-type]
        )

    @validated()
    def summary(self, posterior: Posterior | None = None, data: Any = None) -> str:
        """Temperatures, convergence and stationarity, in a few lines; posterior and data as in `all_temperatures`."""
        return summary(self, self.all_temperatures(posterior, data), self._convergence(None))

    def verdict(self, x: Any = None) -> Verdict:
        """Whether the samples can be trusted: good, warning or bad, with what was measured, expected, and what to do.

        By all thermometers, R̂ and ESS, stationarity, losses and rejected steps. R̂ and ESS are those of predictions on
        the inputs x; without them, of those training inputs that `lv.sample` has chosen, and of a loaded run those of
        weights, which can confirm convergence but not refute it.
        """
        return self._verdict if x is None else judge(self, self.all_temperatures(), self._convergence(x))

    @cached_property
    def _verdict(self) -> Verdict:
        return judge(self, self.all_temperatures(), self._convergence(None))

    def _convergence(self, x: Any) -> Convergence | None:
        """In function space if there are inputs, else in weight space."""
        if len(self) == 0:
            return None
        if x is not None:
            return self.function_convergence(x)
        if self._probe is None:
            return self.convergence(subset=200)
        return self.convergence_of(self.predict(self._probe, samples=True), subset=_PROBED)

    def kinetic_temperature(self) -> Estimate:
        """mean(u²/s) over weights and samples, for samplers with momentum; NaN for others.

        For SGNHT and ATMC with Gaussian kinetic energy the thermostat makes it T by construction once ξ has converged:
        then it says nothing about the weights (`kinetic_is_by_construction`).
        """
        return self._over_chains("kinetic")

    def _over_chains(self, name: str) -> Estimate:
        return mean_and_error(*self.trace(name).values()) if name in self.traces else Estimate(math.nan, math.nan)

    # convergence

    @validated(subset=COUNT, seed=SEED)
    def convergence(
        self, *, names: str | Sequence[str] | None = None, subset: int | None = 1000, seed: int = 0
    ) -> Convergence:
        """R̂ and effective sample sizes in weight space: a random subset (None: all) of the parameters matching `names`.

        Weights of a network are not identifiable: chains may disagree in weight space and agree in all predictions.
        """
        return weight_convergence(self._by_chain(), names=names, subset=subset, seed=seed)

    @validated(batch_size=COUNT)
    def function_convergence(self, x: Any, *, batch_size: int = 1024) -> Convergence:
        """R̂ and effective sample sizes in function space: of log-probabilities (or means) on the probe set x."""
        self._by_chain()
        return self.convergence_of(self.predict(x, batch_size=batch_size, samples=True))

    def convergence_of(self, prediction: Prediction, *, subset: int | None = None) -> Convergence:
        """The same of a prediction of this run with samples, `run.predict(x, samples=True)`; a subset evenly spaced."""
        outputs = outputs_of(prediction)
        count = math.prod(outputs.shape[1:])
        some = np.linspace(0, count - 1, min(subset or count, count)).round().astype(int)
        draws = equal_lengths([rows.reshape(len(rows), -1)[:, some] for rows in self.split_by_chain(outputs)])
        what = "log-probability of class" if isinstance(prediction, ClassPrediction) else "output"
        names = [f"input {i[0]}, {what} {list(i[1:])}" for i in np.ndindex(outputs.shape[1:])]
        return convergence(draws, space="function", names=[names[i] for i in some])

    @validated(level=FRACTION)
    def stationarity(self, level: float = 0.05) -> list[Stationarity]:
        """Whether loss, temperatures and thermostat are stationary; see `langevin.diagnostics.stationarity`."""
        settings = self.manifest.get("settings", {})
        return stationarity({name: self.trace(name) for name in watched(settings) if name in self.traces}, level=level)

    @validated(subset=COUNT, seed=SEED)
    def to_arviz(
        self,
        *,
        names: str | Sequence[str] | None = None,
        subset: int | None = None,
        seed: int = 0,
        x: Any = None,
    ) -> Any:
        """An `arviz.InferenceData`: weights as `posterior`, statistics as `sample_stats`; with x also `predictions`.

        `names` are patterns of tensor names; `subset` is the number of weights to select at random, with `seed`.
        """
        self.check()
        chains = dict(zip(self.chains, self._by_chain(), strict=True))
        predictions = {}
        if x is not None:
            predicted = self.predict(x, samples=True)
            kind = "log_probs" if isinstance(predicted, ClassPrediction) else "mean"
            predictions[kind] = self.split_by_chain(outputs_of(predicted))
        stats = {name: self.trace(name) for name in self.traces}
        return inference_data(chains, stats, names=names, subset=subset, seed=seed, predictions=predictions)

    def _by_chain(self) -> list[StoredSamples]:
        if not self.chains:
            raise ValueError("The run has no sample yet, so there is nothing to diagnose. Sample more steps.")
        return [self._samples.of_chain(c) for c in self.chains]

    def split_by_chain(self, rows: np.ndarray) -> list[np.ndarray]:
        """An array with one row per sample, split into one array per chain."""
        lengths = [sum(record.chain == c for record in self._samples.records) for c in self.chains]
        return np.split(rows, np.cumsum(lengths)[:-1])

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {self.path}"
        chains = f"{len(self.chains)} chain{'' if len(self.chains) == 1 else 's'}"
        return f"<Run of {len(self)} samples from {chains} {where}>"

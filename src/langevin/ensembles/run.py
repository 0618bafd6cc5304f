"""A run: samples of the weights, and what can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from langevin.core.statistics import Estimate, mean_and_error
from langevin.diagnostics.convergence import Convergence, convergence, equal_lengths, weight_convergence
from langevin.diagnostics.inference_data import inference_data
from langevin.diagnostics.stationarity import Stationarity, stationarity
from langevin.ensembles.ensemble import Ensemble, Weights
from langevin.ensembles.prediction import ClassPrediction, Prediction
from langevin.ensembles.predictor import Predictor
from langevin.samplers import SAMPLERS, Sampler
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import copy_store
from langevin.storage.stored import StoredSamples


class Run(Ensemble):
    """Samples of the weights, read as they are asked for; `run[0]` maps names to tensors, `run[100:]` is a run.

    The samples of all chains follow one another; `run.chain(c)` has those of one.
    """

    def __init__(self, store: SampleStore, predictor: Predictor, samples: StoredSamples | None = None) -> None:
        self._store, self._predictor = store, predictor
        self._samples = StoredSamples(store) if samples is None else samples

    # an ensemble

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """One model, with all samples."""
        return [(self._predictor, self._samples.stacks)]

    @property
    def samples(self) -> StoredSamples:
        """The samples with the steps at which they were taken and the statistics that were recorded with them."""
        return self._samples

    def _member(self, index: int) -> Weights:
        return self._samples[index]

    def _subset(self, indices: range) -> Run:
        return self._some(self._samples[indices.start : None if indices.stop < 0 else indices.stop : indices.step])

    def _some(self, samples: StoredSamples) -> Run:
        return Run(self._store, self._predictor, samples)

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

    def chain(self, number: int) -> Run:
        """The samples of one chain."""
        return self._some(self._samples.of_chain(number))

    # what is recorded

    @property
    def path(self) -> Path | None:
        """The directory of the run; None if it is in memory."""
        return self._store.path

    @property
    def store(self) -> SampleStore:
        """Where samples and checkpoints are."""
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
        """The step at which each sample was taken."""
        return self._samples.steps

    @property
    def corrupted(self) -> dict[str, str]:
        """Files of the run that are not, or not wholly, usable, and why; corrupted samples are left out.

        A sample with a number that is not finite is found when it is read (`check` reads all).
        """
        return self._samples.corrupted

    def check(self) -> dict[str, str]:
        """Read every sample once, so that those with NaN or infinity are left out; returns what is corrupted."""
        return self._samples.check()

    @property
    def traces(self) -> list[str]:
        """What `trace` knows of: "loss", "lr", "temperature", "temperature/NAME" of each tensor, and of samplers with
        momentum "kinetic" and "thermostat".
        """
        return self._samples.traces

    def trace(self, name: str) -> dict[int, list[float]]:
        """What was recorded with the samples of each chain: "loss", "lr", "temperature" or another of `traces`.

        All but lr are means since the sample before; nan where nothing was recorded.
        """
        return self._samples.trace(name)

    def save(self, path: str | Path) -> Run:
        """Write a run that is in memory to a new directory; the run there."""
        target = DirectoryStore.create(path, self.manifest)
        copy_store(self._store, target)
        return Run(target, self._predictor)

    # temperature

    @property
    def sampler(self) -> type[Sampler] | None:
        """The sampler's class, if it is registered."""
        recipe = self.manifest.get("sampler") or {}
        return SAMPLERS.exports().get(recipe.get("name", ""))

    @property
    def target_temperature(self) -> float:
        """The sampler's T; nan if it injects no noise, or is not one of the library's."""
        if self.sampler is None or not self.sampler.injects_noise:
            return math.nan
        return float(self.manifest["sampler"]["options"].get("temperature", 1.0))

    @property
    def kinetic_is_by_construction(self) -> bool:
        """Whether a thermostat makes the kinetic temperature T whatever the weights do."""
        recipe = self.manifest.get("sampler") or {"name": "", "options": {}}
        default = {"SGNHT": None, "ATMC": "auto"}
        name = recipe["name"]
        return name in default and recipe["options"].get("max_speed", default[name]) is None

    def temperature(self) -> Estimate:
        """The configurational temperature over all chains, to be compared with `target_temperature`.

        Its standard error is autocorrelation-adjusted; with few samples it is NaN.
        """
        return self._over_chains("temperature")

    def temperatures(self) -> dict[str, Estimate]:
        """The configurational temperature of each tensor by itself, every one of which should be T.

        A thermostat holds the mean; correlated mini-batch noise can leave soft directions cold beneath it. This sees
        differences between tensors, none between directions inside one; for those see `direction_temperatures` in
        `langevin.diagnostics.directions`.
        """
        names = [name for name in self.traces if name.startswith("temperature/")]
        return {name.removeprefix("temperature/"): self._over_chains(name) for name in names}

    def kinetic_temperature(self) -> Estimate:
        """mean(u²/s) over weights and readings, for samplers with momentum; nan for others.

        For SGNHT and ATMC with Gaussian kinetic energy the thermostat makes it T by construction once ξ has settled:
        then it tells that ξ has, and nothing about the weights (`kinetic_is_by_construction`).
        """
        return self._over_chains("kinetic") if "kinetic" in self.traces else Estimate(math.nan, math.nan)

    def _over_chains(self, name: str) -> Estimate:
        estimates = [mean_and_error(values) for values in self.trace(name).values()] if len(self) else []
        n = max(len(estimates), 1)
        return Estimate(sum(e.mean for e in estimates) / n, sum(e.error**2 for e in estimates) ** 0.5 / n)

    # convergence

    def convergence(
        self, *, names: str | Sequence[str] | None = None, subset: int | None = 1000, seed: int = 0
    ) -> Convergence:
        """R̂ and effective sample sizes in weight space: of parameters that match `names`, a random subset (None: all).

        Weights of a network are not identified: chains may disagree about them and agree about all predictions.
        """
        return weight_convergence(self._by_chain(), names=names, subset=subset, seed=seed)

    def function_convergence(self, x: Any, *, batch_size: int = 1024) -> Convergence:
        """R̂ and effective sample sizes in function space: of log-probabilities (or means) on the probe set x."""
        self._by_chain()
        return self.convergence_of(self.predict(x, batch_size=batch_size, samples=True))

    def convergence_of(self, prediction: Prediction) -> Convergence:
        """The same from this run's prediction with samples (`run.predict(x, samples=True)`)."""
        outputs = _outputs(prediction)
        draws = equal_lengths([rows.reshape(len(rows), -1) for rows in self.split_by_chain(outputs)])
        what = "log-probability of class" if isinstance(prediction, ClassPrediction) else "output"
        names = [f"input {i[0]}, {what} {list(i[1:])}" for i in np.ndindex(outputs.shape[1:])]
        return convergence(draws, space="function", names=names)

    def stationarity(self, level: float = 0.05) -> list[Stationarity]:
        """Whether loss, temperatures and thermostat are stationary; see `langevin.diagnostics.stationarity`."""
        watched = ("loss", "temperature", "kinetic", "thermostat")
        return stationarity({name: self.trace(name) for name in watched if name in self.traces}, level=level)

    def to_arviz(
        self,
        *,
        names: str | Sequence[str] | None = None,
        subset: int | None = None,
        seed: int = 0,
        x: Any = None,
    ) -> Any:
        """An `arviz.InferenceData`: weights as `posterior`, statistics as `sample_stats`; with x also `predictions`.

        `names` are patterns of tensors, `subset` a number of weights, drawn by `seed`, to take of them.
        """
        self.check()
        chains = dict(zip(self.chains, self._by_chain(), strict=True))
        predictions = {}
        if x is not None:
            predicted = self.predict(x, samples=True)
            kind = "log_probs" if isinstance(predicted, ClassPrediction) else "mean"
            predictions[kind] = self.split_by_chain(_outputs(predicted))
        stats = {name: self.trace(name) for name in self.traces}
        return inference_data(chains, stats, names=names, subset=subset, seed=seed, predictions=predictions)

    def _by_chain(self) -> list[StoredSamples]:
        if not self.chains:
            raise ValueError("The run has no sample yet, so there is nothing to diagnose. Sample more steps.")
        return [self._samples.of_chain(c) for c in self.chains]

    def split_by_chain(self, rows: np.ndarray) -> list[np.ndarray]:
        """An array with a row for every sample, as one array a chain."""
        lengths = [sum(record.chain == c for record in self._samples.records) for c in self.chains]
        return np.split(rows, np.cumsum(lengths)[:-1])

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {self.path}"
        return f"<Run of {len(self)} samples from {len(self.chains)} chains {where}>"


def _outputs(prediction: Prediction) -> np.ndarray:
    """What each sample predicts, (samples, n, …): log-probabilities of classes, or means."""
    assert prediction.samples is not None
    outputs = prediction.samples.double()
    if isinstance(prediction, ClassPrediction):
        outputs = outputs.clamp_min(float(np.finfo(np.float32).tiny)).log()
    found: np.ndarray = outputs.cpu().numpy()
    return found

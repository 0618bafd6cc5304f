"""A run: samples of the weights, with predictions and diagnostics."""

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
from langevin.storage.stored_samples import StoredSamples


class Run(Ensemble):
    """Samples of the weights, read lazily; `run[0]` maps names to tensors, `run[100:]` is a run.

    The samples of the chains are concatenated; `run.chain(c)` contains those of one.
    """

    def __init__(self, store: SampleStore, predictor: Predictor, samples: StoredSamples | None = None) -> None:
        self._store, self._predictor = store, predictor
        self._samples = StoredSamples(store) if samples is None else samples
        self._whole = samples is None

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

    def trace(self, name: str) -> dict[int, list[float]]:
        """The values recorded with the samples of each chain: "loss", "lr", "temperature" or another of `traces`.

        All but lr are means over the steps since the previous sample; NaN if nothing was recorded.
        """
        return self._samples.trace(name)

    @property
    def is_whole(self) -> bool:
        """Whether this is a run as it was sampled; a slice or a chain is a part, which can't be resumed."""
        return self._whole

    def save(self, path: str | Path) -> Run:
        """Write these samples to a new directory, and return the stored run. Only a whole run can be resumed there."""
        manifest = self.manifest if self.is_whole else {**self.manifest, "recorded": True}
        target = DirectoryStore.create(path, manifest)
        copy_store(self._store, target, None if self.is_whole else self._samples.records)
        return Run(target, self._predictor)

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
        """The configurational temperature over all chains, to be compared with `target_temperature`.

        Its standard error is autocorrelation-adjusted; with few samples it is NaN.
        """
        return self._over_chains("temperature")

    def temperatures(self) -> dict[str, Estimate]:
        """The configurational temperature of each tensor; each should be T.

        A thermostat controls the mean over all weights; with correlated mini-batch noise flat directions can be colder.
        This detects differences between tensors, not between directions within a tensor; for those see
        `direction_temperatures` in `langevin.diagnostics.directions`.
        """
        names = [name for name in self.traces if name.startswith("temperature/")]
        return {name.removeprefix("temperature/"): self._over_chains(name) for name in names}

    def kinetic_temperature(self) -> Estimate:
        """mean(u²/s) over weights and samples, for samplers with momentum; NaN for others.

        For SGNHT and ATMC with Gaussian kinetic energy the thermostat makes it T by construction once ξ has converged:
        then it says nothing about the weights (`kinetic_is_by_construction`).
        """
        return self._over_chains("kinetic")

    def _over_chains(self, name: str) -> Estimate:
        return mean_and_error(*self.trace(name).values()) if name in self.traces else Estimate(math.nan, math.nan)

    # convergence

    def convergence(
        self, *, names: str | Sequence[str] | None = None, subset: int | None = 1000, seed: int = 0
    ) -> Convergence:
        """R̂ and effective sample sizes in weight space: a random subset (None: all) of the parameters matching `names`.

        Weights of a network are not identifiable: chains may disagree in weight space and agree in all predictions.
        """
        return weight_convergence(self._by_chain(), names=names, subset=subset, seed=seed)

    def function_convergence(self, x: Any, *, batch_size: int = 1024) -> Convergence:
        """R̂ and effective sample sizes in function space: of log-probabilities (or means) on the probe set x."""
        self._by_chain()
        return self.convergence_of(self.predict(x, batch_size=batch_size, samples=True))

    def convergence_of(self, prediction: Prediction) -> Convergence:
        """The same, from a prediction of this run with samples: `run.predict(x, samples=True)`."""
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

        `names` are patterns of tensor names; `subset` is the number of weights to select at random, with `seed`.
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
        """An array with one row per sample, split into one array per chain."""
        lengths = [sum(record.chain == c for record in self._samples.records) for c in self.chains]
        return np.split(rows, np.cumsum(lengths)[:-1])

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {self.path}"
        chains = f"{len(self.chains)} chain{'' if len(self.chains) == 1 else 's'}"
        return f"<Run of {len(self)} samples from {chains} {where}>"


def _outputs(prediction: Prediction) -> np.ndarray:
    """The predictions of each sample, (samples, n, …): log-probabilities of classes, or means."""
    assert prediction.samples is not None
    outputs = prediction.samples.double()
    if isinstance(prediction, ClassPrediction):
        outputs = outputs.clamp_min(float(np.finfo(np.float32).tiny)).log()
    found: np.ndarray = outputs.cpu().numpy()
    return found

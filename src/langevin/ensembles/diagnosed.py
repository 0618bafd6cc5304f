"""What can be asked of a run about itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from langevin.core.statistics import Estimate, mean_and_error
from langevin.diagnostics.convergence import Convergence, convergence, weight_convergence
from langevin.diagnostics.inference_data import inference_data
from langevin.diagnostics.stationarity import Stationarity, stationarity
from langevin.samplers import METHODS


class Diagnosed(ABC):
    """The diagnostics of a sequence of samples that has chains, notes and predictions."""

    @property
    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """Configuration, versions, seed, names and shapes."""

    @property
    @abstractmethod
    def chains(self) -> list[int]:
        """The numbers of the chains that have samples."""

    @abstractmethod
    def chain(self, number: int) -> Any:
        """The samples of one chain."""

    @property
    @abstractmethod
    def traces(self) -> list[str]:
        """What `trace` knows of."""

    @abstractmethod
    def trace(self, name: str) -> dict[int, list[float]]:
        """What was noted with the samples of each chain."""

    @abstractmethod
    def check(self) -> dict[Path, str]:
        """Leave damaged samples out."""

    @property
    def target_temperature(self) -> float:
        """The T that the sampler was asked for; nan if it injects no noise, or was a function of the user's."""
        recipe = self.manifest.get("sampler") or {}
        for method in METHODS.values():
            if method.sampler.__name__ == recipe.get("name") and method.sampler.injects_noise:
                return float(recipe["options"].get("temperature", 1.0))
        return math.nan

    @property
    def kinetic_is_by_construction(self) -> bool:
        """Whether a thermostat makes the kinetic temperature T whatever the weights do."""
        recipe = self.manifest.get("sampler") or {"name": "", "options": {}}
        default = {"SGNHT": None, "ATMC": "auto"}
        name = recipe["name"]
        return name in default and recipe["options"].get("max_speed", default[name]) is None

    def temperature(self) -> Estimate:
        """The configurational temperature over all chains, to be compared with the T that was asked.

        Its error knows of the autocorrelation inside a chain; with few samples it is unknown (nan).
        """
        return self._over_chains("temperature")

    def temperatures(self) -> dict[str, Estimate]:
        """The configurational temperature of each tensor by itself, every one of which is to be T.

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
        estimates = [mean_and_error(values) for values in self.trace(name).values()]
        n = max(len(estimates), 1)
        return Estimate(sum(e.mean for e in estimates) / n, sum(e.error**2 for e in estimates) ** 0.5 / n)

    def convergence(
        self, *, names: str | Sequence[str] | None = None, subset: int | None = 1000, seed: int = 0
    ) -> Convergence:
        """R̂ and effective sample sizes in weight space: of parameters that match `names`, a random subset (None: all).

        Weights of a network are not identified: chains may disagree about them and agree about all predictions.
        """
        return weight_convergence(self._by_chain(), names=names, subset=subset, seed=seed)

    def function_convergence(self, x: Any, *, batch_size: int = 1024) -> Convergence:
        """R̂ and effective sample sizes in function space: of log-probabilities (or means) on the probe set x."""
        predicted = [chain.predict(x, batch_size=batch_size, samples=True) for chain in self._by_chain()]
        of_chains = [_outputs(prediction) for prediction in predicted]
        shortest = min(len(rows) for rows in of_chains)
        draws = np.stack([rows[-shortest:].reshape(shortest, -1) for rows in of_chains])
        what = "log-probability of class" if hasattr(predicted[0], "probs") else "output"
        names = [f"input {i[0]}, {what} {list(i[1:])}" for i in np.ndindex(of_chains[0].shape[1:])]
        return convergence(draws, space="function", names=names)

    def stationarity(self, level: float = 0.05) -> list[Stationarity]:
        """Whether loss, temperatures and thermostat settled; see `langevin.diagnostics.stationarity`."""
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
        """An `arviz.InferenceData`: weights as `posterior`, the notes as `sample_stats`; with x also `predictions`.

        `names` are patterns of tensors, `subset` a number of weights, drawn by `seed`, to take of them.
        """
        self.check()
        chains = dict(zip(self.chains, self._by_chain(), strict=True))
        predictions = {}
        if x is not None:
            predicted = [chain.predict(x, samples=True) for chain in chains.values()]
            kind = "log_probs" if hasattr(predicted[0], "probs") else "mean"
            predictions[kind] = [_outputs(prediction) for prediction in predicted]
        notes = {name: self.trace(name) for name in self.traces}
        return inference_data(chains, notes, names=names, subset=subset, seed=seed, predictions=predictions)

    def _by_chain(self) -> list[Any]:
        if not self.chains:
            raise ValueError("The run holds no sample yet, so there is nothing to diagnose. Sample more steps.")
        return [self.chain(c) for c in self.chains]


def _outputs(prediction: Any) -> np.ndarray:
    """What each sample says, (samples, n, …): log-probabilities of classes, or means."""
    outputs = prediction.samples.double()
    if hasattr(prediction, "probs"):
        outputs = outputs.clamp_min(torch.finfo(torch.float32).tiny).log()
    found: np.ndarray = outputs.cpu().numpy()
    return found

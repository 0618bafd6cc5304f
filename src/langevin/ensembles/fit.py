"""The result of `lv.fit`: an ensemble of draws from the fitted distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from langevin.approximations import APPROXIMATIONS, Approximation
from langevin.approximations.averaging.batchnorm import estimate_statistics
from langevin.approximations.distributions import WeightDistribution
from langevin.core.arguments import COUNT, SEED, validated
from langevin.core.batches import as_batches, split_batch
from langevin.core.posterior import Posterior
from langevin.ensembles.ensemble import Ensemble, Weights, stacked
from langevin.ensembles.prediction import Prediction
from langevin.ensembles.predictor import Predictor
from langevin.errors import RunError
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import copy_store
from langevin.storage.stored_samples import StoredSamples


class Fit(Ensemble):
    """Independent draws of the weights from the fitted distribution; `fit[i]` is a pure function of i.

    `fit.snapshots` are the recorded parameters of the approximation, `fit.distribution` is the distribution that they
    define.
    """

    def __init__(self, store: SampleStore, predictor: Predictor) -> None:
        self._store, self._predictor = store, predictor
        self.approximation = read_approximation(store.manifest["method"])
        self.snapshots = StoredSamples(store)
        self.seed: int = store.manifest.get("settings", {}).get("seed")
        self.draws: int = store.manifest["draws"]
        if type(self.seed) is not int or not 0 <= self.seed < 2**64:
            raise RunError(f"The manifest of {store.name} has no seed; was it written by another program?")

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """The model, with all draws."""
        return [(self._predicting, lambda size: stacked(iter(self), size))]

    @cached_property
    def _predicting(self) -> Predictor:
        """The predictor, linearized about the mean of the weights if the approximation asks for it."""
        return self._predictor.linearized(self.distribution.mean) if self.approximation.linearized else self._predictor

    @property
    def path(self) -> Path | None:
        """The directory of the fit; None if it is in memory."""
        return self._store.path

    @property
    def store(self) -> SampleStore:
        """The store of snapshots and checkpoints."""
        return self._store

    @property
    def manifest(self) -> dict[str, Any]:
        """Configuration, versions, seed, names and shapes."""
        return self._store.manifest

    @cached_property
    def distribution(self) -> WeightDistribution:
        """The distribution over the weights."""
        if not len(self.snapshots):
            raise RunError(
                f"{self._store.name} has no snapshot yet; continue it with lv.resume({self._store.name!r}, …)."
            )
        with _what_was_stored(self._store):
            return self.approximation.distribution(self.snapshots, self.manifest["weights"])

    @validated()
    def trace(self, name: str) -> dict[int, list[float]]:
        """The values recorded with the snapshots: "loss" or "lr"."""
        return self.snapshots.trace(name)

    def __len__(self) -> int:
        return 1 if self.distribution.is_point else self.draws

    def _member(self, index: int) -> Weights:
        return self._draw(index, self.seed)

    @validated(count=COUNT, seed=SEED)
    def sample(self, count: int, *, seed: int | None = None) -> Weights:
        """`count` draws, stacked along a first axis of every weight, as for `torch.func.vmap`."""
        if count < 1:
            raise ValueError(f"sample({count}): draw at least one.")
        drawn = [self._draw(number, self.seed if seed is None else seed) for number in range(count)]
        return {name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]}

    @validated(batch_size=COUNT, draws=COUNT, seed=SEED)
    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 1024,
        samples: bool = False,
        draws: int | None = None,
        seed: int | None = None,
    ) -> Prediction:
        """The predictive distribution at the inputs x, over `draws` draws (by default `len(fit)`)."""
        if draws is not None and draws < 1:
            raise ValueError(f"predict(draws={draws}): draw at least one set of weights.")
        if draws is None and seed is None:
            return super().predict(x, batch_size=batch_size, samples=samples)
        return _Redrawn(self, draws or len(self), self.seed if seed is None else seed).predict(
            x, batch_size=batch_size, samples=samples
        )

    @validated()
    def save(self, path: str | Path) -> Fit:
        """Write a fit that is in memory to a new directory, and return the stored fit."""
        target = DirectoryStore.create(path, self.manifest)
        copy_store(self._store, target)
        return Fit(target, self._predictor)

    @validated(draws=COUNT, batch_size=COUNT)
    def reestimate(self, posterior: Posterior, data: Any, *, draws: int | None = None, batch_size: int = 256) -> None:
        """Re-estimate the BatchNorm statistics of the first draws, by a pass over the data for each, and store them.

        `lv.fit` does this already; call it to predict with more draws than were given there.
        """
        device = next(posterior.parameters()).device
        draws = len(self) if draws is None else draws
        if isinstance(data, DataLoader):
            inputs = [split_batch(batch)[0] for batch in data]
        else:
            inputs = [x for x, _ in as_batches(data, None, 0, device).full_pass(batch_size)]
        weights = (self.distribution.draw(self.seed, number) for number in range(draws))
        with self._store.writing():
            self._store.write_fixed(estimate_statistics(posterior, weights, inputs), "statistics")
        self.__dict__.pop("_statistics", None)

    @cached_property
    def _statistics(self) -> dict[str, Tensor]:
        """The BatchNorm statistics of the draws, (draws, …); the model has such buffers."""
        if not self.manifest["buffers"]:
            return {}
        statistics = self._store.fixed("statistics")
        with _what_was_stored(self._store):
            self._predictor.check_weights({name: statistics[name][0] for name in self.manifest["buffers"]})
            if len({len(rows) for rows in statistics.values()}) > 1:
                raise ValueError("the statistics are of different numbers of draws")
        return statistics

    def _draw(self, number: int, seed: int) -> Weights:
        weights = self.distribution.draw(seed, number)
        known = next((len(rows) for rows in self._statistics.values()), None)
        if known is None:
            return weights
        if not self.distribution.is_point and (seed != self.seed or number >= known):
            raise ValueError(
                f"BatchNorm statistics are available for draws 0 … {known - 1} of seed {self.seed}, not for draw "
                f"{number} of seed {seed}; estimate them: fit.reestimate(posterior, train, draws={number + 1})."
            )
        return weights | {name: rows[min(number, known - 1)] for name, rows in self._statistics.items()}

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {self.path}"
        return f"<Fit of {self.approximation!r} from {len(self.snapshots)} snapshots {where}>"


@contextmanager
def _what_was_stored(store: SampleStore) -> Iterator[None]:
    """Whatever goes wrong inside means that a manifest, which anyone may have written, is not of these tensors."""
    try:
        yield
    except RunError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise RunError(
            f"The manifest of {store.name} does not describe what is stored there ({type(error).__name__}: {error})."
        ) from error


class _Redrawn(Ensemble):
    """A fit with another number of draws or another seed."""

    def __init__(self, fit: Fit, count: int, seed: int) -> None:
        self._fit, self._count, self._seed = fit, count, seed

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        return [(self._fit._predicting, lambda size: stacked(iter(self), size))]

    def _member(self, index: int) -> Weights:
        return self._fit._draw(index, self._seed)

    def __len__(self) -> int:
        return self._count


def read_approximation(recipe: Any) -> Approximation:
    """The approximation that a manifest describes."""
    known = APPROXIMATIONS.exports()
    if isinstance(recipe, dict) and recipe.get("name") in known:
        with suppress(KeyError, AttributeError, TypeError, ValueError):
            options = recipe["options"].items()
            return known[recipe["name"]](**{n: read_approximation(v) if isinstance(v, dict) else v for n, v in options})
    raise RunError(f"{recipe} describes no registered approximation; was the fit written by a newer version?")

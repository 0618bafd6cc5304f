"""What `fit` returns: a distribution over the weights, with the face of a run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from langevin.approximations.averaging import HWA, SWA, SWAG
from langevin.approximations.averaging.batchnorm import estimate_statistics
from langevin.approximations.base import Approximation, Method
from langevin.approximations.laplace import LaplaceApproximation
from langevin.approximations.variational import LowRank, MeanField
from langevin.core.batches import as_batches, split_batch
from langevin.core.likelihoods import Likelihood
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.core.statistics import Estimate
from langevin.ensembles.predict import Prediction, Predictor
from langevin.ensembles.run import Run, Sample, Scratch, known_likelihood
from langevin.errors import RunError
from langevin.storage.directory import DirectoryStore

METHODS: dict[str, type[Method]] = {
    "meanfield": MeanField,
    "lowrank": LowRank,
    "swa": SWA,
    "swag": SWAG,
    "hwa": HWA,
    "laplace": LaplaceApproximation,
}


class Fit(Run):
    """A sequence of independent draws of the weights from the fitted distribution; `fit[i]` is a pure function of i.

    `predict`, `len` and the rest are those of a run, so `lv.compare` takes it. The parameters of the method at the
    times when they were kept are `fit.snapshots`, the distribution that they make is `fit.approximation`.
    """

    def __init__(self, store: DirectoryStore, predictor: Predictor, *, scratch: Scratch | None = None) -> None:
        super().__init__(store, predictor, scratch=scratch)
        self.method = read_method(store.manifest["method"])
        self.seed: int = store.manifest["plan"]["seed"]
        self.draws: int = store.manifest["draws"]

    @property
    def snapshots(self) -> Run:
        """The parameters of the method, as they were kept on the way."""
        return Run(self._store, self._predictor, scratch=self._scratch)

    @cached_property
    def approximation(self) -> Approximation:
        """The distribution over the weights."""
        if not self._records:
            raise RunError(f"{self.path} holds no snapshot yet; go on with it: lv.resume({str(self.path)!r}, …).")
        return self.method.approximation(self.snapshots, self.manifest["weights"])

    @property
    def steps(self) -> list[int]:
        """The numbers of the draws; the steps of the snapshots are `fit.snapshots.steps`."""
        return list(range(len(self)))

    def chain(self, number: int) -> Run:
        """Itself: there is one, number 0."""
        if number != 0:
            raise IndexError(f"A fit has the chain 0 only, not {number}.")
        return self

    def __len__(self) -> int:
        return 1 if self.approximation.is_point else self.draws

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return self._draw(numbers, self.seed)
        return [self._draw(number, self.seed) for number in numbers]

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def stacks(self, size: int) -> Iterator[Sample]:
        """All draws, up to `size` at a time, stacked along a first axis."""
        for start in range(0, len(self), size):
            drawn = self[start : start + size]
            yield {name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]}

    def sample(self, count: int, *, seed: int | None = None) -> Sample:
        """So many draws, stacked along a first axis of every weight: what `torch.func.vmap` wants."""
        if count < 1:
            raise ValueError(f"sample({count}): draw at least one.")
        drawn = [self._draw(number, self.seed if seed is None else seed) for number in range(count)]
        return {name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]}

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 1024,
        samples: bool = False,
        draws: int | None = None,
        seed: int | None = None,
    ) -> Prediction:
        """The predictive distribution at the inputs x, over `draws` draws (by default those that `len` counts)."""
        if draws is not None and draws < 1:
            raise ValueError(f"predict(draws={draws}): draw at least one set of weights.")
        numbers = range(len(self) if draws is None else draws)
        weights = (self._draw(number, self.seed if seed is None else seed) for number in numbers)
        return self._predictor.predict(weights, x, batch_size=batch_size, samples=samples)

    def temperature(self) -> Estimate:
        """Unknown: an optimum has none."""
        return Estimate(math.nan, math.nan)

    def reestimate(self, posterior: Posterior, data: Any, *, draws: int | None = None, batch_size: int = 256) -> None:
        """Estimate the BatchNorm statistics of the first draws anew, by a pass over the data for each; stored.

        `fit` does it; it is needed again only for more draws than were asked for there.
        """
        device = next(posterior.parameters()).device
        draws = len(self) if draws is None else draws
        if isinstance(data, DataLoader):
            inputs = [split_batch(batch)[0] for batch in data]
        else:
            inputs = [x for x, _ in as_batches(data, None, 0, device).whole(batch_size)]
        weights = (self.approximation.draw(self.seed, number) for number in range(draws))
        with self._store.writing():
            self._store.write_fixed(estimate_statistics(posterior, weights, inputs), "statistics")
        self.__dict__.pop("_statistics", None)

    @cached_property
    def _statistics(self) -> dict[str, Tensor]:
        return self._store.fixed("statistics") if self.manifest["buffers"] else {}

    def _draw(self, number: int, seed: int) -> Sample:
        weights = self.approximation.draw(seed, number)
        known = next((len(rows) for rows in self._statistics.values()), None)
        if known is None:
            return weights
        if not self.approximation.is_point and (seed != self.seed or number >= known):
            raise ValueError(
                f"The BatchNorm statistics are known for the draws 0 … {known - 1} of seed {self.seed}, not for draw "
                f"{number} of seed {seed}; estimate more: fit.reestimate(posterior, train, draws={number + 1})."
            )
        return weights | {name: rows[min(number, known - 1)] for name, rows in self._statistics.items()}

    def __repr__(self) -> str:
        return f"<Fit of {self.method!r} from {len(self._records)} snapshots in {self.path}>"


def load(path: str | Path, model: nn.Module, likelihood: Likelihood | None = None) -> Fit:
    """Open a fit for prediction; the arguments are those of `lv.load`."""
    store = DirectoryStore.open(path)
    predictor = Predictor(copy.deepcopy(model), copy.deepcopy(likelihood or known_likelihood(store)))
    load_tensors(predictor, store.fixed())
    fit = Fit(store, predictor)
    load_tensors(predictor, fit.approximation.mean)  # it must be this very model
    return fit


def read_method(recipe: Any) -> Method:
    """The method that stands in a manifest."""
    for method in METHODS.values():
        if isinstance(recipe, dict) and method.__name__ == recipe.get("name"):
            with suppress(KeyError, AttributeError, TypeError):
                options = recipe["options"].items()
                return method(**{name: read_method(v) if isinstance(v, dict) else v for name, v in options})
    raise RunError(f"{recipe} describes no method of langevin; was the fit made by a newer version?")

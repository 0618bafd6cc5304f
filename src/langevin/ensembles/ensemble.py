"""`Ensemble`: sets of weights that predict. Runs and fits are ensembles; so are their slices, chains and unions.

The contract, which `tests/contract/test_ensemble.py` checks for every kind:

- It is a sequence: `e[i]` is a dict of named tensors, iteration gives all `len(e)` of them, `e[a:b]` is an ensemble.
- `predict(x)` is the mean over its members. It modifies neither the ensemble nor the user's model, and is thread-safe.
- `Ensemble.concat([a, b])` predicts the mean over all members of a and b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import torch
from torch import Tensor, nn

from langevin.core.arguments import COUNT, validated
from langevin.core.batches import example_inputs
from langevin.core.likelihoods import Categorical, Likelihood
from langevin.ensembles.inputs import checked_inputs, explained
from langevin.ensembles.notebook import ensemble_html
from langevin.ensembles.prediction import Prediction
from langevin.ensembles.predictor import Predictor

if TYPE_CHECKING:
    from langevin.ensembles.export import EnsembleModule

Weights = dict[str, Tensor]


class Ensemble(Sequence[Weights], ABC):
    """Sets of weights that predict; `ensemble[0]` maps names to tensors, a slice is an ensemble."""

    @property
    @abstractmethod
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """The models of the members, each with a function from a number n to their weights, stacked n at a time."""

    @abstractmethod
    def _member(self, index: int) -> Weights:
        """The weights of one member, 0 ≤ index < len."""

    def _subset(self, indices: range) -> Ensemble:
        return _Subset(self, indices)

    @property
    def manifest(self) -> dict[str, Any]:
        """The configuration, if recorded."""
        return {}

    @property
    def classifies(self) -> bool:
        """Whether it predicts class probabilities, not values."""
        return self.predictors[0][0].classifies

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> Ensemble: ...

    def __getitem__(self, index: int | slice) -> Weights | Ensemble:
        if isinstance(index, slice):
            return self._subset(range(len(self))[index])
        if not isinstance(index, SupportsIndex):
            raise TypeError(f"An ensemble is indexed by numbers and slices; given {index!r}.")
        try:
            return self._member(range(len(self))[index])
        except IndexError:
            raise IndexError(f"There are {len(self)} samples; given index {index}.") from None

    def __iter__(self) -> Iterator[Weights]:
        return (self._member(index) for index in range(len(self)))

    @validated(batch_size=COUNT)
    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The predictive distribution at the inputs x, over all members.

        Classification gives `.probs`, `.entropy`, `.aleatoric`, `.mutual_information`, regression `.mean`,
        `.variance`, `.aleatoric`, `.epistemic` and `.interval(0.9)`, `.quantile(q)`, `.cdf(y)`, `.log_prob(y)`,
        `.sample(n)`; with `samples=True` `.samples` contains the predictions of each member. `x` is a batch of inputs,
        a data set or a DataLoader (targets are dropped). Fewer members: `run[::10].predict(x)`.
        """
        return self._predict_many({"x": x}, batch_size, ["x"] if samples else [], None)["x"]

    @validated(batch_size=COUNT)
    def predict_many(
        self,
        inputs: Mapping[str, Any],
        *,
        batch_size: int = 1024,
        samples: Collection[str] = (),
        observe: Callable[[Weights], None] | None = None,
    ) -> dict[str, Prediction]:
        """The predictive distributions at several sets of inputs, in one pass over the members.

        Each set of weights is read once. Memory is bounded for many members, except for the inputs named in `samples`,
        for which the predictions of each member are returned. `observe` is called with every stack of weights.
        """
        if unknown := set(samples) - set(inputs):
            raise ValueError(f"samples={sorted(unknown)} are not among the inputs {list(inputs)}.")
        return self._predict_many(inputs, batch_size, samples, observe)

    def _predict_many(
        self,
        inputs: Mapping[str, Any],
        batch_size: int,
        samples: Collection[str],
        observe: Callable[[Weights], None] | None,
    ) -> dict[str, Prediction]:
        known = self.manifest.get("inputs")
        checked = {name: checked_inputs(x, batch_size, known) for name, x in inputs.items()}
        predictors = self.predictors
        several = len(predictors) > 1 and len({repr(predictor.likelihood) for predictor, _ in predictors}) > 1
        if several:  # no common family of distributions
            predictors = [(predictor.with_moments(), stacks) for predictor, stacks in predictors]
        gathered = {name: predictors[0][0].accumulator(name in samples, len(self)) for name in inputs}
        for predictor, stacks in predictors:
            together = min((predictor.batch_of_samples(x) for x in checked.values()), default=64)
            for stack in stacks(together):
                if observe is not None:
                    observe(stack)
                for name, x in checked.items():
                    with explained(x, known):
                        outputs = predictor.outputs(stack, x, batch_size)
                    gathered[name].add(outputs)
        return {name: accumulator.result() for name, accumulator in gathered.items()}

    def log_probs(self, x: Any, y: Any) -> Iterator[Tensor]:
        """log p(y|x,θ) of each member in turn, (n,), differentiable with respect to x."""
        for predictor, stacks in self.predictors:
            yield from predictor.log_probs(_unstacked(stacks(1)), x, y)

    @validated(samples=COUNT)
    def export(self, path: str | Path, *, inputs: Any = None, samples: int | None = None) -> EnsembleModule:
        """Write one module that returns predictions with uncertainties, and return it.

        Args:
            path: ends in .pt2 (loaded by `torch.export.load(path).module()`, without langevin) or in .onnx.
            inputs: example inputs, for their dtype and shape; by default those recorded by `sample`.
            samples: the number of members to export, evenly spaced; by default all. The file contains all of them.
        """
        from langevin.ensembles.export import EnsembleModule, write_module

        if inputs is None:
            if not self.manifest.get("inputs"):
                raise ValueError(
                    f"The shape of the inputs is not recorded; give an example: .export({str(path)!r}, inputs=x)."
                )
            inputs = example_inputs(self.manifest["inputs"])
        if len(self) == 0:
            raise ValueError("The ensemble has no sample yet, so there is nothing to export. Sample more steps.")
        if samples is not None and not 1 <= samples <= len(self):
            raise ValueError(f"samples={samples}: there are {len(self)}; give 1 to {len(self)}.")
        if len(self.predictors) > 1:
            raise ValueError("A union of ensembles has several models; export each ensemble by itself.")
        chosen = [self[i * len(self) // (samples or len(self))] for i in range(samples or len(self))]
        module = EnsembleModule(self.predictors[0][0], chosen)
        write_module(module, path, inputs)
        return module

    def _repr_html_(self) -> str:
        return ensemble_html(self)

    def __repr__(self) -> str:
        return f"<Ensemble of {len(self)} sets of weights>"

    @staticmethod
    def concat(ensembles: Iterable[Ensemble]) -> Ensemble:
        """The members of several ensembles as one; their models may differ, but must predict the same quantity."""
        return _Union(list(ensembles))

    @staticmethod
    def from_weights(
        model: nn.Module, likelihood: Likelihood, weights: Iterable[Mapping[str, Tensor]] | None = None
    ) -> Ensemble:
        """State dicts of a model as an ensemble; by default the model's current weights."""
        return WeightList(Predictor(model, likelihood), weights)

    @staticmethod
    def from_classifier(model: nn.Module) -> Ensemble:
        """One module that returns logits, as an ensemble of one."""
        return WeightList(Predictor(model, Categorical()))


class WeightList(Ensemble):
    """Weights in memory."""

    def __init__(self, predictor: Predictor, weights: Iterable[Mapping[str, Tensor]] | None = None) -> None:
        self._predictor = predictor
        self._weights = [predictor.own_weights()] if weights is None else [dict(each) for each in weights]
        for each in self._weights[:1]:
            predictor.check_weights(each)

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """One model, with all weights."""
        return [(self._predictor, lambda size: stacked(iter(self._weights), size))]

    def double(self) -> WeightList:
        """The same in double precision."""
        weights = [{name: tensor.double() for name, tensor in each.items()} for each in self._weights]
        return WeightList(self._predictor.double(), weights)

    def _member(self, index: int) -> Weights:
        return self._weights[index]

    def __len__(self) -> int:
        return len(self._weights)


class _Subset(Ensemble):
    """A subset of the members of an ensemble with one model."""

    def __init__(self, whole: Ensemble, indices: Sequence[int]) -> None:
        self._whole, self._indices = whole, list(indices)

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        ((predictor, _),) = self._whole.predictors
        return [(predictor, lambda size: stacked(iter(self), size))]

    @property
    def manifest(self) -> dict[str, Any]:
        return self._whole.manifest

    def _member(self, index: int) -> Weights:
        return self._whole[self._indices[index]]

    def __len__(self) -> int:
        return len(self._indices)


class _Union(Ensemble):
    """The members of several ensembles, one after another."""

    def __init__(self, parts: list[Ensemble]) -> None:
        if not parts:
            raise ValueError("No ensemble given. Write lv.Ensemble.concat([run, other]).")
        if wrong := [type(part).__name__ for part in parts if not isinstance(part, Ensemble)]:
            raise ValueError(f"lv.Ensemble.concat takes ensembles, such as runs and fits; given {wrong[0]}.")
        if len({part.classifies for part in parts}) > 1:
            raise ValueError("Some of these ensembles are classifiers and some are regressors; they can't be averaged.")
        self._parts: list[Ensemble] = []
        for part in parts:
            self._parts += part._parts if isinstance(part, _Union) else [part]

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        return [pair for part in self._parts for pair in part.predictors]

    def _subset(self, indices: range) -> Ensemble:
        places = [(part, index) for part in self._parts for index in range(len(part))]
        chosen = groupby((places[index] for index in indices), key=lambda place: id(place[0]))
        groups = [list(group) for _, group in chosen]
        subsets: list[Ensemble] = [_Subset(group[0][0], [i for _, i in group]) for group in groups]
        return _Union(subsets or [_Subset(self._parts[0], [])])

    def _member(self, index: int) -> Weights:
        for part in self._parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def stacked(weights: Iterator[Mapping[str, Tensor]], size: int) -> Iterator[Weights]:
    """Weights stacked along a first axis, up to `size` at a time."""
    while some := list(islice(weights, size)):
        yield {name: torch.stack([sample[name] for sample in some]) for name in some[0]}


def _unstacked(stacks: Iterator[Weights]) -> Iterator[Weights]:
    for stack in stacks:
        for row in range(len(next(iter(stack.values())))):
            yield {name: tensor[row] for name, tensor in stack.items()}

"""From samples of the weights to predictions: streamed over samples, batched over inputs.

Classes: p(y|x) = mean_s p(y|x,θ_s).  Its entropy is the total uncertainty; the mean of the entropies of the samples is
the aleatoric part (noise in the data); the rest, the mutual information of y and θ, the epistemic part (not enough
data).  Regression: the variance of y = mean_s of the noise variance (aleatoric) + variance over s of the mean
(epistemic).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from langevin.core.batches import batch_size_of, call
from langevin.core.likelihoods import Likelihood
from langevin.core.parameters import internal_names

_SMALL = 1 << 17  # weights of a network whose samples may be computed together
_FEW = 128  # inputs up to which that is quicker
_ROOM = 1 << 22  # numbers, of weights and inputs, that are read together
_TINY = torch.finfo(torch.float64).tiny  # p log p is 0 at p = 0


@dataclass(frozen=True)
class ClassPrediction:
    """Predicted classes of n inputs: `probs` is (n, classes), the uncertainties, in nats, are (n,)."""

    probs: Tensor
    entropy: Tensor
    aleatoric: Tensor
    samples: Tensor | None = None  # (samples, n, classes), if they were asked for

    @property
    def mutual_information(self) -> Tensor:
        """The epistemic part: entropy − aleatoric, 0 or more but for rounding."""
        return self.entropy - self.aleatoric

    @property
    def labels(self) -> Tensor:
        """The most probable class of each input."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the most probable class."""
        return self.probs.amax(1)


@dataclass(frozen=True)
class ValuePrediction:
    """Predicted values of n inputs: mean, and variance = aleatoric + epistemic, in the shape of the model's output."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    samples: Tensor | None = None  # (samples, n, …): the mean that each sample predicts, if they were asked for
    noise: Tensor | None = None  # (samples, n, …): and its variance

    @property
    def variance(self) -> Tensor:
        """Variance of y: noise and doubt about the weights together."""
        return self.aleatoric + self.epistemic


Prediction = ClassPrediction | ValuePrediction


class Predictor(nn.Module):
    """A model and its likelihood: inputs to class probabilities, or to mean and variance."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model = model
        self.likelihood: Any = likelihood
        self.classifies = hasattr(likelihood, "probs")
        self._known_to_vmap: bool | None = None

    def forward(self, x: Any, y: Any = None) -> Any:
        """Class probabilities, or mean and variance, for one set of weights; given y, log p(y|x)."""
        output = call(self.model, x)
        if y is not None:
            return self.likelihood.log_prob(output, y)
        return self.likelihood.probs(output) if self.classifies else self.likelihood.moments(output)

    @torch.no_grad()
    def predict(
        self, weights: Iterable[Mapping[str, Tensor]], x: Any, *, batch_size: int = 1024, samples: bool = False
    ) -> Prediction:
        """The predictive distribution at x over all given weights.

        The weights are read once each; memory grows with the number of inputs, not of samples (unless the samples'
        own outputs are asked for). Samples of small networks are read many at a time, and for few inputs computed so.
        """
        if not (self.classifies or hasattr(self.likelihood, "moments")):
            raise ValueError(
                f"{self.likelihood!r} can't predict: give it probs(output) for class probabilities or moments(output) "
                f"for mean and variance."
            )
        x = _checked(x, batch_size)
        names = internal_names(self)
        device = next(self.parameters()).device
        accumulate = _Classes(samples) if self.classifies else _Values(samples)
        size = sum(p.numel() for p in self.parameters()) + batch_size_of(x)
        with _evaluating(self):
            compute = self._vectorised if self._can_be_vectorised(x) else self._one_by_one
            for stack in _stacks(weights, max(1, min(128, _ROOM // size))):
                named = {names[name]: tensor.to(device) for name, tensor in stack.items()}
                use = compute if named else self._as_it_is
                accumulate.add([use(named, piece) for piece in _pieces(x, batch_size, device)])
        return accumulate.result()

    def _as_it_is(self, named: Mapping[str, Tensor], x: Any) -> Any:
        """The output of the module's own weights, with a first axis of one."""
        return tree_map(lambda t: t[None], self(x))

    def _vectorised(self, named: Mapping[str, Tensor], x: Any) -> Any:
        """The outputs of stacked weights, along a first axis, as one computation."""
        return vmap(lambda w, inputs: functional_call(self, w, (inputs,)), (0, None))(named, x)

    def _one_by_one(self, named: Mapping[str, Tensor], x: Any) -> Any:
        """The same by a forward pass for each, the weights put into the module in place of its own."""
        own = dict(self.named_parameters()) | dict(self.named_buffers())
        places = [(own[name], stack) for name, stack in named.items()]
        before = [place.data for place, _ in places]
        try:
            outputs = []
            for row in range(len(places[0][1])):
                for place, stack in places:
                    place.data = stack[row]
                outputs.append(self(x))
        finally:
            for (place, _), data in zip(places, before, strict=True):
                place.data = data
        return tree_map(lambda *rows: torch.stack(rows), *outputs)

    def _can_be_vectorised(self, x: Any) -> bool:
        """For a small network without convolutions and few inputs, where calls cost more than arithmetic."""
        if (
            batch_size_of(x) > _FEW
            or sum(p.numel() for p in self.parameters()) > _SMALL
            or any(isinstance(module, _ConvNd) for module in self.modules())
        ):
            return False
        if self._known_to_vmap is not None:
            return self._known_to_vmap
        self._known_to_vmap = True
        try:
            two = {name: p.expand(2, *p.shape) for name, p in self.named_parameters()}
            self._vectorised(two, next(_pieces(x, 1, next(self.parameters()).device)))
        except RuntimeError:  # an operation that has no rule for vmap
            self._known_to_vmap = False
        return self._known_to_vmap

    def log_probs(self, weights: Iterable[Mapping[str, Tensor]], x: Any, y: Any) -> Iterator[Tensor]:
        """log p(y|x,θ) for each of the weights in turn, (n,); gradients with respect to x go through it."""
        names = internal_names(self)
        device = next(self.parameters()).device
        x, y = tree_map(lambda t: t.to(device), (x, y))
        with _evaluating(self):
            for sample in weights:
                named = {names[name]: tensor.to(device) for name, tensor in sample.items()}
                yield functional_call(self, named, (x, y))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every layer then has the mode that it had."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


class _Classes:
    def __init__(self, keep: bool) -> None:
        self.count = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.entropies = torch.zeros((), dtype=torch.float64)
        self.kept: list[Tensor] | None = [] if keep else None

    def add(self, parts: list[Tensor]) -> None:
        """Take in the probabilities of some samples, (samples, inputs, classes), piece by piece of the inputs."""
        self.dtype = parts[0].dtype
        probs = torch.cat(parts, 1)
        self.total = self.total.to(probs.device) + probs.sum(0, dtype=torch.float64)
        p = probs.double()  # as precise as that of the mean: one sample has no doubt
        self.entropies = self.entropies.to(probs.device) - p.clamp_min(_TINY).log_().mul_(p).sum(2).sum(0)
        self.count += len(probs)
        if self.kept is not None:
            self.kept.append(probs)

    def result(self) -> ClassPrediction:
        _at_least_one(self.count)
        probs = self.total / self.count
        return ClassPrediction(
            probs=probs.to(self.dtype),
            entropy=torch.special.entr(probs).sum(1).to(self.dtype),
            aleatoric=(self.entropies / self.count).to(self.dtype),
            samples=None if self.kept is None else torch.cat(self.kept),
        )


class _Values:
    """Welford's recursion: a second moment minus a squared mean would lose everything in rounding."""

    def __init__(self, keep: bool) -> None:
        self.count = 0
        self.kept: list[tuple[Tensor, Tensor]] | None = [] if keep else None

    def add(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        """Take in means and variances of some samples, (samples, inputs, …), piece by piece of the inputs."""
        self.dtype = parts[0][0].dtype
        means = torch.cat([m for m, _ in parts], 1).double()
        noises = torch.cat([v for _, v in parts], 1).double()
        if self.count == 0:
            self.mean, self.noise, self.squares = (torch.zeros_like(means[0]) for _ in range(3))
        for mean, noise in zip(means, noises, strict=True):
            self.count += 1
            deviation = mean - self.mean
            self.mean += deviation / self.count
            self.squares += deviation * (mean - self.mean)
            self.noise += (noise - self.noise) / self.count
            if self.kept is not None:
                self.kept.append((mean.to(self.dtype), noise.to(self.dtype)))

    def result(self) -> ValuePrediction:
        _at_least_one(self.count)
        return ValuePrediction(
            mean=self.mean.to(self.dtype),
            aleatoric=self.noise.to(self.dtype),
            epistemic=(self.squares / self.count).to(self.dtype),
            samples=None if self.kept is None else torch.stack([mean for mean, _ in self.kept]),
            noise=None if self.kept is None else torch.stack([noise for _, noise in self.kept]),
        )


def _stacks(weights: Iterable[Mapping[str, Tensor]], size: int) -> Iterator[Mapping[str, Tensor]]:
    """Weights along a first axis, up to `size` at a time; from a run they are read that way."""
    if size > 1 and hasattr(weights, "stacks"):
        yield from weights.stacks(size)
        return
    if size == 1:
        yield from ({name: tensor[None] for name, tensor in sample.items()} for sample in weights)
        return
    samples = iter(weights)
    while some := list(itertools.islice(samples, size)):
        if some[0]:
            yield {name: torch.stack([sample[name] for sample in some]) for name in some[0]}
        else:  # the module's own weights, so many times
            yield from some


def _checked(x: Any, batch_size: int) -> Any:
    """The inputs as tensors, of which there must be some."""
    leaves = tree_leaves(x)
    if batch_size < 1 or not leaves or not all(isinstance(leaf, Tensor | np.ndarray) for leaf in leaves):
        raise ValueError(
            f"predict takes inputs as a tensor, or a tuple or dict of tensors, and a batch_size of 1 or more; given "
            f"{type(x).__name__} and batch_size={batch_size}. For a data set: torch.stack([x for x, _ in data])."
        )
    x = tree_map(torch.as_tensor, x)
    if batch_size_of(x) == 0:
        raise ValueError("There is no input to predict for: x is empty.")
    return x


def _pieces(x: Any, batch_size: int, device: torch.device) -> Iterator[Any]:
    for start in range(0, batch_size_of(x), batch_size):
        yield tree_map(lambda t, s=start: t[s : s + batch_size].to(device), x)


def _at_least_one(count: int) -> None:
    if count == 0:
        raise ValueError("The run holds no sample yet, so there is nothing to predict with. Sample more steps.")

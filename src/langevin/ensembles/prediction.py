"""Predictive distributions, and how they are accumulated over samples of the weights.

Classification: p(y|x) = mean_s p(y|x,θ_s).  Its entropy is the total uncertainty; the mean entropy of the samples is
the aleatoric part (noise in the data); the difference, the mutual information of y and θ, is the epistemic part (lack
of data).  Regression: the variance of y = mean_s of the noise variance (aleatoric) + variance over s of the mean
(epistemic); densities, quantiles and draws are those of the mixture p(y|x) = mean_s p(y|x,θ_s).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from langevin.core.devices import as_tensor
from langevin.core.likelihoods.base import gaussian, sampled_classes
from langevin.core.random import Source, Stream
from langevin.ensembles import notebook
from langevin.ensembles.mixture import Mixture
from langevin.kernels.probabilities import TINY, add_probabilities

_KEPT = 1 << 25  # parameters of distributions in a prediction, 128 MB in single precision


@dataclass(frozen=True)
class ClassPrediction:
    """Predicted classes of n inputs: `probs` is (n, classes), the uncertainties, in nats, are (n,)."""

    probs: Tensor
    entropy: Tensor
    aleatoric: Tensor
    samples: Tensor | None = None  # (samples, n, classes), if requested

    __repr__, _repr_html_ = notebook.class_line, notebook.class_html

    @property
    def mutual_information(self) -> Tensor:
        """The epistemic part, entropy − aleatoric; nonnegative up to rounding."""
        return self.entropy - self.aleatoric

    @property
    def labels(self) -> Tensor:
        """The most probable class of each input."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the most probable class."""
        return self.probs.amax(1)

    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y) of labels (n,); with further dimensions summed over positions, (n,)."""
        labels = as_tensor(y).to(self.probs.device)
        each = self.probs.double().clamp_min(TINY).log().gather(1, labels.long().unsqueeze(1)).squeeze(1)
        return each.flatten(1).sum(1) if each.dim() > 1 else each

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Labels drawn from p(y|x), (count, n)."""
        probs = self.probs.double().movedim(1, -1)
        return sampled_classes(probs.expand(count, *probs.shape), Source(seed, chain=0, step=0, stream=Stream.DRAWS))


@dataclass(frozen=True)
class ValuePrediction:
    """Predicted values of n inputs: mean, and variance = aleatoric + epistemic, in the shape of y.

    `interval`, `quantile`, `cdf`, `log_prob` and `sample` are those of the mixture, over members, of the likelihood's
    own distributions, noise included.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    samples: Tensor | None = None  # (samples, n, …): predicted means of each sample, if requested
    noise: Tensor | None = None  # (samples, n, …): their noise variances
    components: Mixture | None = field(default=None, repr=False)
    members: int = 1  # over which mean and variance are taken

    __repr__, _repr_html_ = notebook.value_line, notebook.value_html

    @property
    def variance(self) -> Tensor:
        """Variance of y: aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def mixture(self) -> Mixture:
        """The distribution of y; Gaussians of the known moments if the likelihood's own are not known."""
        if self.components is not None:
            if self.components.members < self.members:
                warnings.warn(
                    f"Quantiles, densities and draws use {self.components.members} of {self.members} members, evenly "
                    f"spaced, to bound memory. For all of them predict(x, samples=True), or predict fewer inputs.",
                    stacklevel=3,
                )
            return self.components
        if self.samples is None:
            return Mixture(gaussian, (self.mean[None], self.variance[None]))
        noise = self.aleatoric.expand_as(self.samples) if self.noise is None else self.noise
        return Mixture(gaussian, (self.samples, noise))

    def interval(self, probability: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that y lies in with this probability, each (n, …)."""
        if np.ndim(probability) or not 0 < probability < 1:
            raise ValueError(f"An interval needs 0 < probability < 1; given {probability}. Write interval(0.9).")
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)

    def quantile(self, q: float) -> Tensor:
        """The value below which y lies with probability q, (n, …)."""
        if np.ndim(q) or not 0 < q < 1:
            raise ValueError(
                f"A quantile needs one number, 0 < q < 1; given {q}. Write quantile(0.5) for the median, and "
                f"torch.stack([prediction.quantile(q) for q in (0.1, 0.5, 0.9)]) for several."
            )
        return self.mixture.quantile(q).to(self.mean.dtype)

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y) of every value of y, (n, …)."""
        return self.mixture.cdf(self._like(y))

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the predictive density at y, (n,); jointly for the values of an example."""
        return self.mixture.log_prob(self._like(y))

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Draws of y, noise included, (count, n, …)."""
        if count < 1:
            raise ValueError(f"sample(n) needs n of 1 or more; given {count}.")
        return self.mixture.sample(count, seed)

    def _like(self, y: Tensor) -> Tensor:
        """y in the shape of the mean; (n,) against (n, 1) would broadcast to (n, n)."""
        y = as_tensor(y).to(self.mean.device)
        if y.numel() != self.mean.numel() or len(y) != len(self.mean):
            raise ValueError(
                f"The prediction has values of shape {tuple(self.mean.shape)}, y has shape {tuple(y.shape)}; give one "
                f"y for every value."
            )
        return y.reshape(self.mean.shape)


Prediction = ClassPrediction | ValuePrediction


class ClassAccumulator:
    """Sums over samples of class probabilities and of their entropies."""

    def __init__(self, keep: bool) -> None:
        self.count = 0
        self.samples: list[Tensor] | None = [] if keep else None

    def add(self, parts: list[Tensor]) -> None:
        """Add the probabilities of some samples, (samples, inputs, classes), as a list over batches of inputs."""
        self.dtype = parts[0].dtype
        probs = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if self.count == 0:
            self.total, self.entropies = (torch.zeros_like(probs[0], dtype=torch.float64) for _ in range(2))
        add_probabilities(probs, self.total, self.entropies)
        self.count += len(probs)
        if self.samples is not None:
            self.samples.append(probs)

    def result(self) -> ClassPrediction:
        """The prediction over all samples."""
        _require_samples(self.count)
        probs = self.total / self.count
        return ClassPrediction(
            probs=probs.to(self.dtype),
            entropy=torch.special.entr(probs).sum(1).to(self.dtype),
            aleatoric=(self.entropies.sum(1) / self.count).to(self.dtype),
            samples=None if self.samples is None else torch.cat(self.samples),
        )


class ValueAccumulator:
    """Means and variances over samples, by Welford's recursion: a difference of moments would cancel.

    The parameters of the members' distributions are kept too: of all with `keep`, else of as many, evenly spaced, as
    fit into a bounded memory.
    """

    def __init__(self, keep: bool, family: Callable[..., Distribution] = gaussian, members: int = 1) -> None:
        self.count = 0
        self.keep, self.family, self.members = keep, family, members
        self.kept: list[tuple[Tensor, ...]] = []

    def add(self, parts: list[tuple[Tensor, ...]]) -> None:
        """Add parameters of some samples' distributions, (samples, inputs, …), as a list over batches of inputs."""
        parameters = tuple(torch.cat(each, 1) for each in zip(*parts, strict=True))
        self.dtype = parameters[0].dtype
        means, noises = Mixture(self.family, parameters).moments()
        if self.count == 0:
            self.mean, self.noise, self.squares = (torch.zeros_like(means[0]) for _ in range(3))
            size = sum(p[0].numel() for p in parameters)
            self.every = 1 if self.keep else -(-self.members * size // _KEPT)
        chosen = [row for row in range(len(means)) if (self.count + row) % self.every == 0]
        if chosen:
            self.kept.append(tuple(p if len(chosen) == len(p) else p[chosen] for p in parameters))
        for mean, noise in zip(means, noises, strict=True):
            self.count += 1
            deviation = mean - self.mean
            self.mean += deviation / self.count
            self.squares += deviation * (mean - self.mean)
            self.noise += (noise - self.noise) / self.count

    def result(self) -> ValuePrediction:
        """The prediction over all samples."""
        _require_samples(self.count)
        parameters = tuple(torch.cat(each) for each in zip(*self.kept, strict=True))
        components = Mixture(self.family, parameters)
        means, noises = components.moments() if self.keep else (None, None)
        return ValuePrediction(
            mean=self.mean.to(self.dtype),
            aleatoric=self.noise.to(self.dtype),
            epistemic=(self.squares / self.count).to(self.dtype),
            samples=None if means is None else means.to(self.dtype),
            noise=None if noises is None else noises.to(self.dtype),
            components=components,
            members=self.count,
        )


Accumulator = ClassAccumulator | ValueAccumulator


def _require_samples(count: int) -> None:
    if count == 0:
        raise ValueError("The ensemble has no sample yet, so there is nothing to predict with. Sample more steps.")


def on_host(prediction: Prediction) -> Prediction:
    """The prediction in the memory of the host, where it is scored and drawn; itself if it is there."""
    if (prediction.probs if isinstance(prediction, ClassPrediction) else prediction.mean).is_cpu:
        return prediction
    changes: dict[str, Any] = {}
    for name, value in vars(prediction).items():
        if isinstance(value, Tensor):
            changes[name] = value.cpu()
        elif isinstance(value, Mixture):
            changes[name] = Mixture(value.family, tuple(p.cpu() for p in value.parameters))
    return replace(prediction, **changes)


def outputs_of(prediction: Prediction) -> np.ndarray:
    """The predictions of each sample, (samples, n, …): log-probabilities of classes, or means."""
    assert prediction.samples is not None
    outputs = prediction.samples.double()
    if isinstance(prediction, ClassPrediction):
        outputs = outputs.clamp_min(float(np.finfo(np.float32).tiny)).log()
    found: np.ndarray = outputs.cpu().numpy()
    return found

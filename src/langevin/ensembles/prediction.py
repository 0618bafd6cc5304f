"""Predictive distributions, and how they are accumulated over samples of the weights.

Classification: p(y|x) = mean_s p(y|x,θ_s).  Its entropy is the total uncertainty; the mean entropy of the samples is
the aleatoric part (noise in the data); the difference, the mutual information of y and θ, is the epistemic part (lack
of data).  Regression: the variance of y = mean_s of the noise variance (aleatoric) + variance over s of the mean
(epistemic).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float64).tiny  # p log p is 0 at p = 0


@dataclass(frozen=True)
class ClassPrediction:
    """Predicted classes of n inputs: `probs` is (n, classes), the uncertainties, in nats, are (n,)."""

    probs: Tensor
    entropy: Tensor
    aleatoric: Tensor
    samples: Tensor | None = None  # (samples, n, classes), if requested

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


@dataclass(frozen=True)
class ValuePrediction:
    """Predicted values of n inputs: mean, and variance = aleatoric + epistemic, in the shape of the model's output."""

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    samples: Tensor | None = None  # (samples, n, …): predicted means of each sample, if requested
    noise: Tensor | None = None  # (samples, n, …): their noise variances

    @property
    def variance(self) -> Tensor:
        """Variance of y: aleatoric + epistemic."""
        return self.aleatoric + self.epistemic


Prediction = ClassPrediction | ValuePrediction


class ClassAccumulator:
    """Sums over samples of class probabilities and of their entropies."""

    def __init__(self, keep: bool) -> None:
        self.count = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.entropies = torch.zeros((), dtype=torch.float64)
        self.samples: list[Tensor] | None = [] if keep else None

    def add(self, parts: list[Tensor]) -> None:
        """Add the probabilities of some samples, (samples, inputs, classes), as a list over batches of inputs."""
        self.dtype = parts[0].dtype
        probs = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        self.total = self.total.to(probs.device) + probs.sum(0, dtype=torch.float64)
        p = probs.double()  # in the precision of the mean's, so that one sample has no epistemic part
        self.entropies = self.entropies.to(probs.device) - p.clamp_min(_TINY).log_().mul_(p).sum(2).sum(0)
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
            aleatoric=(self.entropies / self.count).to(self.dtype),
            samples=None if self.samples is None else torch.cat(self.samples),
        )


class ValueAccumulator:
    """Means and variances over samples, by Welford's recursion: a difference of moments would cancel."""

    def __init__(self, keep: bool) -> None:
        self.count = 0
        self.samples: list[tuple[Tensor, Tensor]] | None = [] if keep else None

    def add(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        """Add means and variances of some samples, (samples, inputs, …), as a list over batches of inputs."""
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
            if self.samples is not None:
                self.samples.append((mean.to(self.dtype), noise.to(self.dtype)))

    def result(self) -> ValuePrediction:
        """The prediction over all samples."""
        _require_samples(self.count)
        return ValuePrediction(
            mean=self.mean.to(self.dtype),
            aleatoric=self.noise.to(self.dtype),
            epistemic=(self.squares / self.count).to(self.dtype),
            samples=None if self.samples is None else torch.stack([mean for mean, _ in self.samples]),
            noise=None if self.samples is None else torch.stack([noise for _, noise in self.samples]),
        )


Accumulator = ClassAccumulator | ValueAccumulator


def _require_samples(count: int) -> None:
    if count == 0:
        raise ValueError("The ensemble has no sample yet, so there is nothing to predict with. Sample more steps.")

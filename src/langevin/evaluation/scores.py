"""Scores of predictions: class probabilities (n, classes) against labels (n,), values against targets.

Functions ending in `_each` return one number per example; the score is their mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.core.arguments import COUNT, validated
from langevin.core.devices import as_tensor
from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation.calibration import Reliability, calibration_error, reliability
from langevin.evaluation.checks import checked
from langevin.evaluation.quadrature import integrated_crps

__all__ = [
    "Reliability",
    "accuracy",
    "accuracy_each",
    "brier",
    "brier_each",
    "calibration_error",
    "class_scores",
    "crps",
    "crps_each",
    "negative_log_likelihood",
    "negative_log_likelihood_each",
    "reliability",
    "root_mean_square_error",
    "squared_error_each",
    "value_negative_log_likelihood_each",
    "value_scores",
]

_APART = 32  # distances of members, of which pairs are taken


def accuracy_each(probs: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is correct, else 0."""
    probs, labels = checked(probs, labels)
    return (probs.argmax(1) == labels).double()


@validated()
def accuracy(probs: Tensor, labels: Tensor) -> float:
    """The share of examples whose most probable class is correct."""
    return float(accuracy_each(probs, labels).mean())


def negative_log_likelihood_each(probs: Tensor, labels: Tensor) -> Tensor:
    """−log p(label), in nats; a probability of 0 counts as the smallest float32, 1.2e-38."""
    probs, labels = checked(probs, labels)
    return -probs.gather(1, labels[:, None]).squeeze(1).clamp_min(torch.finfo(torch.float32).tiny).log()


@validated()
def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats."""
    return float(negative_log_likelihood_each(probs, labels).mean())


def brier_each(probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_c (p(c) − [label = c])², in 0 … 2."""
    probs, labels = checked(probs, labels)
    return (probs - torch.nn.functional.one_hot(labels, probs.shape[1])).square().sum(1)


@validated()
def brier(probs: Tensor, labels: Tensor) -> float:
    """The mean of Σ_c (p(c) − [label = c])², in 0 … 2 (scikit-learn halves it for two classes)."""
    return float(brier_each(probs, labels).mean())


def squared_error_each(mean: Tensor, target: Tensor) -> Tensor:
    """(mean − target)², averaged over the dimensions of a target."""
    mean, target = _rows(mean), _like(mean, target)
    return (mean - target).square().mean(1)


@validated()
def root_mean_square_error(mean: Tensor, target: Tensor) -> float:
    """√ mean (mean − target)²."""
    return math.sqrt(float(squared_error_each(mean, target).mean()))


def value_negative_log_likelihood_each(prediction: ValuePrediction, target: Tensor) -> Tensor:
    """−log predictive density of a target, jointly for its dimensions.

    The density is the mixture over members of the likelihood's own densities, mean_s p(y|x,θ_s). A prediction made of
    mean and variance alone counts as Gaussian.
    """
    return -prediction.log_prob(_like(prediction.mean, target)).double()


def crps_each(prediction: ValuePrediction, target: Tensor) -> Tensor:
    """Continuous ranked probability score ∫(F(z) − [z ≥ y])² dz, averaged over the dimensions of a target.

    F is the cdf of the mixture over members: in closed form for Gaussians (Grimit et al. 2006), else by quadrature, for
    counts by summation. In the units of y; lower is better. Of many Gaussians not all pairs are taken, but those that
    are k apart, for 32 of all k.
    """
    y = _like(prediction.mean, target)
    mixture = prediction.mixture
    if not mixture.gaussian:
        return _rows(integrated_crps(mixture, y.reshape(prediction.mean.shape))).mean(1)
    means, variances = (moment.reshape(*moment.shape[:2], -1) for moment in mixture.moments())
    to_target = _expected_distance(y - means, variances).mean(0)
    return (to_target - _between(means, variances) / 2).mean(1)


@validated()
def crps(prediction: ValuePrediction, target: Tensor) -> float:
    """The mean of `crps_each`."""
    return float(crps_each(prediction, target).mean())


@validated(bins=COUNT)
def class_scores(probs: Tensor, labels: Tensor, bins: int = 8) -> dict[str, float]:
    """ "accuracy", "nll", "brier", "calibration error" (equal mass) and "calibration error (equal width)"."""
    bins = min(bins, len(labels))
    return {
        "accuracy": accuracy(probs, labels),
        "nll": negative_log_likelihood(probs, labels),
        "brier": brier(probs, labels),
        "calibration error": calibration_error(probs, labels, bins),
        "calibration error (equal width)": calibration_error(probs, labels, bins, "width"),
    }


@validated()
def value_scores(prediction: ValuePrediction, target: Tensor) -> dict[str, float]:
    """ "rmse", "nll" and "crps"."""
    return {
        "rmse": root_mean_square_error(prediction.mean, target),
        "nll": float(value_negative_log_likelihood_each(prediction, target).mean()),
        "crps": crps(prediction, target),
    }


def _between(means: Tensor, variances: Tensor) -> Tensor:
    """E|X − X′| of two draws from a mixture of Gaussians, (members, n, …): the mean over pairs of members."""
    members = len(means)
    count = min(members - 1, _APART)
    apart = [1 + int((i + 0.5) * (members - 1) / count) for i in range(count)]
    distances = torch.zeros_like(means[0])
    for k in apart:  # a loop: all pairs at once may not fit in memory
        distances += _expected_distance(means - means.roll(k, 0), variances + variances.roll(k, 0)).mean(0) / len(apart)
    same = _expected_distance(torch.zeros_like(means), 2 * variances).mean(0)
    return (same + (members - 1) * distances) / members


def _expected_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, variance)."""
    std = variance.sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    z = mean / std
    above: Tensor = torch.special.ndtr(z)
    return mean * (2 * above - 1) + std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


def _rows(values: Tensor) -> Tensor:
    """(n, dimensions), in double precision."""
    given: Tensor = as_tensor(values).detach()
    if given.dim() == 0 or len(given) == 0:
        raise ValueError(f"Scores need at least one example; given values of shape {tuple(given.shape)}.")
    return given.double().reshape(len(given), -1)


def _like(mean: Tensor, target: Tensor) -> Tensor:
    """The target in the shape of the mean; (n,) against (n, 1) would broadcast to (n, n)."""
    target, mean = _rows(target), _rows(mean)
    if target.shape != mean.shape:
        raise ValueError(
            f"The prediction has {mean.shape[1]} values for each of {len(mean)} examples, the target {target.shape[1]} "
            f"for each of {len(target)}."
        )
    return target

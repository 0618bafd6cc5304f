"""The interface of a likelihood: log p(y | output), one value per example.

A likelihood is any object with `log_prob(output, target)` that returns one number per example. `predict` also needs
`probs(output)` (class probabilities) or `moments(output)` (mean and variance; scores then take y for Gaussian). A
likelihood with sampled parameters is an `nn.Module`. Methods that use the Fisher information need
`sample(output, source)`, targets drawn from p(y | output), or `output_fisher(output)`, the covariance
E[∇log p ∇log pᵀ] with respect to the output, of shape (batch, outputs, outputs). `validate(output, target)`, where
there is one, raises for targets that the likelihood can't have; `num_outputs(target)` tells the command line the size
of the network.

`ValueLikelihood` is the base of the library's own likelihoods of values (not classes): p(y | output) is an object of
`torch.distributions`, so that scores, quantiles and samples of a prediction are those of the likelihood.

The library's likelihoods are registered: `@LIKELIHOODS.register` on the class, one import in `likelihoods/__init__.py`.
They have `config()`, the constructor's arguments, which are stored in the manifest of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from langevin.core.random import Source, forked_generators
from langevin.core.registry import Registry

LIKELIHOODS: Registry[type[Any]] = Registry("likelihood")


@runtime_checkable
class Likelihood(Protocol):
    """The interface of a likelihood."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(target | output), of shape (batch,)."""
        ...


class ValueLikelihood(ABC):
    """A likelihood of real values or counts: the values of y are independent, with one distribution each.

    `parameters_of(output)` are the parameters of these distributions, each of shape (batch, …) like y, which depend on
    the weights; `distribution(*parameters)` depends on nothing else, and takes parameters of any shape.
    """

    @abstractmethod
    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """The parameters of p(y | output)."""

    @abstractmethod
    def distribution(self, *parameters: Tensor) -> Distribution:
        """p(y) with these parameters."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(y | output), summed over the values of y."""
        parameters = self.parameters_of(output)
        each = self.distribution(*parameters).log_prob(like_output(repr(self), parameters[0], target))
        return per_example(each)

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        found = self.distribution(*self.parameters_of(output))
        return found.mean, found.variance

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """y drawn from p(y | output)."""
        return drawn(self.distribution(*self.parameters_of(output)), 1, source.integer())[0]

    def num_outputs(self, target: Tensor) -> int:
        """The number of outputs that the model needs for these targets."""
        return target[0].numel()

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.config().items())})"


def drawn(distribution: Distribution, count: int, seed: int) -> Tensor:
    """`count` draws, stacked along a first axis. torch's distributions know the global generators only: they are seeded
    inside, and restored."""
    with forked_generators(seed):
        return distribution.sample(torch.Size([count]))


def gaussian(mean: Tensor, variance: Tensor) -> Distribution:
    """The Gaussian of this mean and variance."""
    return Normal(mean, variance.sqrt(), validate_args=False)


def in_single_precision(output: Tensor) -> Tensor:
    """The output in float32 or better: under autocast it is in half precision."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def per_example(each: Tensor) -> Tensor:
    """Log-densities of the values, summed for each example."""
    return each.flatten(1).sum(1) if each.dim() > 1 else each


def diagonal_fisher(information: Tensor) -> Tensor:
    """(batch, outputs, outputs), from the Fisher information of every output."""
    return torch.diag_embed(information.reshape(len(information), -1))


def refuse_overflow(likelihood: Any, what: str, values: Tensor) -> None:
    """Raise if these parameters of a distribution are not finite."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"{likelihood!r}: the {what} overflows at the model's present weights. Standardize the inputs, "
            f"(x - x.mean(0)) / x.std(0), or start at smaller weights."
        )


def refuse_outside(likelihood: Any, target: Tensor, inside: Tensor, expected: str) -> None:
    """Raise for targets outside the support."""
    if not bool(inside.all()):
        raise ValueError(
            f"{likelihood!r} needs {expected}; found target {target[~inside][0].item():g} ({int((~inside).sum())} of "
            f"{target.numel()} targets)."
        )


def sampled_classes(probs: Tensor, source: Source) -> Tensor:
    """Classes of probabilities (…, classes), drawn by inverting their sums."""
    sums = probs.double().cumsum(-1)
    u = source.uniform(sums[..., -1]) * sums[..., -1]
    return (sums[..., :-1] <= u.unsqueeze(-1)).sum(-1)


def sampled_labels(likelihood: Any, output: Tensor, source: Source) -> Tensor:
    """Targets from p(y | output), for the Fisher information."""
    if not hasattr(likelihood, "sample"):
        raise ValueError(
            f"{likelihood!r} has no sample(output, source), so labels can't be sampled from the model. Add "
            f'this method, or use the training labels: "empirical".'
        )
    labels: Tensor = likelihood.sample(output, source)
    return labels


def like_output(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The target in the output's shape and dtype; (batch,) and (batch, 1) would broadcast to (batch, batch)."""
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise ValueError(
            f"{name}: the target has shape {tuple(target.shape)}, the model's output {tuple(output.shape)}; "
            f"they must have the same number of values per example."
        )
    return target.to(output.dtype).reshape(output.shape)

"""Any distribution of torch as a likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution as TorchDistribution

from langevin.core.likelihoods.base import ValueLikelihood, in_single_precision


class Distribution(ValueLikelihood):
    """p(y | output) = fn(output), any object of `torch.distributions` whose batch is that of the output.

    Values of y that are dimensions of the batch of the distribution are independent. Sampling needs its `log_prob`;
    predictions its `mean`, `variance` and, for quantiles, its `cdf`, else draws are used. It is not stored with a run:
    `lv.load(path, model, likelihood)`. A function that builds it with `validate_args=False` can be vectorised.

    >>> from torch.distributions import Gamma
    >>> likelihood = Distribution(lambda out: Gamma(out[:, 0].exp(), out[:, 1].exp(), validate_args=False))
    >>> likelihood.log_prob(torch.zeros(2, 2), torch.ones(2))
    tensor([-1., -1.])
    """

    def __init__(self, fn: Callable[[Tensor], TorchDistribution]) -> None:
        if not callable(fn):
            raise ValueError(
                f"Distribution takes a function from the model's output to a distribution; given {fn!r}. Write "
                f"Distribution(lambda out: torch.distributions.Laplace(out, 0.1))."
            )
        if isinstance(fn, nn.Module) and any(True for _ in fn.parameters()):
            raise ValueError(
                "The function of Distribution has parameters of its own, which would not be sampled. Make them outputs "
                "of the model, or write a likelihood that is an nn.Module."
            )
        self.fn = fn

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """The output itself."""
        return (in_single_precision(output),)

    def distribution(self, *parameters: Tensor) -> TorchDistribution:
        """fn(output)."""
        try:
            found = self.fn(parameters[0])
        except ValueError as error:  # torch shows all numbers
            raise ValueError(
                f"{self!r}: the function can't make a distribution of the model's output: {str(error).splitlines()[0]} "
                f"Keep the parameters inside, functional.softplus(out) + 1e-3 for positive ones; standardize the "
                f"inputs, or start at smaller weights."
            ) from error
        if not isinstance(found, TorchDistribution):
            raise ValueError(
                f"The function of Distribution must return an object of torch.distributions; it returned "
                f"{type(found).__name__}."
            )
        return found

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(y | output), summed over the values of y."""
        found = self.distribution(*self.parameters_of(output))
        shape = found.batch_shape + found.event_shape
        if target.shape[:1] != shape[:1] or target.numel() != shape.numel():
            raise ValueError(
                f"{self!r}: the target has shape {tuple(target.shape)}, the distribution {tuple(shape)}; they must "
                f"have the same number of values per example. For one value: out[:, 0] in the function."
            )
        each = found.log_prob(target.reshape(shape).to(found.mean.dtype))
        return each.flatten(1).sum(1) if each.dim() > 1 else each

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse targets outside the support, and parameters that overflow."""
        found = self.distribution(*self.parameters_of(output))
        assert found.support is not None
        inside = found.support.check(target.to(found.mean.dtype))  # type: ignore[no-untyped-call]
        if not bool(inside.all()):
            raise ValueError(
                f"{self!r}: {int((~inside).sum())} of {inside.numel()} targets lie outside the support of "
                f"{type(found).__name__}, {found.support}, such as {target[~inside][0].tolist()}."
            )
        if not bool(torch.isfinite(found.mean).all()):
            raise ValueError(
                f"{self!r}: the mean of {type(found).__name__} is not finite at the model's present weights. "
                f"Standardize the inputs, or start at smaller weights."
            )

    def config(self) -> dict[str, Any]:
        """The function, by name."""
        return {"fn": getattr(self.fn, "__name__", type(self.fn).__name__)}

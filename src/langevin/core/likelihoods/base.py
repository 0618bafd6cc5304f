"""What a likelihood is: log p(y | output), one value per example.

A likelihood is any object with `log_prob(output, target)` that returns one number per example; to be used in
`predict` it also has `probs(output)` (class probabilities) or `moments(output)` (mean and variance). One with
parameters of its own that are to be sampled is an `nn.Module`. Methods that need the Fisher information ask for
`sample(output, generator)`, targets drawn from p(y | output), or `output_fisher(output)`, the covariance
E[∇log p ∇log pᵀ] with respect to the output, of shape (batch, outputs, outputs).

The library's own are registered: `@LIKELIHOODS.register` on the class, one import in `likelihoods/__init__.py`. They
have `config()`, what the constructor takes, so that a manifest can name them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from langevin.core.registry import Registry

LIKELIHOODS: Registry[type[Any]] = Registry("likelihood")


@runtime_checkable
class Likelihood(Protocol):
    """What a posterior needs of a likelihood."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(target | output), of shape (batch,)."""
        ...


def sampled_labels(likelihood: Any, output: Tensor, generator: torch.Generator) -> Tensor:
    """Targets from p(y | output), for the Fisher information."""
    if not hasattr(likelihood, "sample"):
        raise ValueError(
            f"{likelihood!r} has no sample(output, generator), so labels can't be drawn from the model. Give it "
            f'one, or use the training labels: "empirical".'
        )
    labels: Tensor = likelihood.sample(output, generator)
    return labels


def like_output(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The target in the output's shape and type; (batch,) against (batch, 1) would broadcast to (batch, batch)."""
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise ValueError(
            f"{name}: the target has shape {tuple(target.shape)}, the model's output {tuple(output.shape)}; "
            f"they must hold the same number of values per example."
        )
    return target.to(output.dtype).reshape(output.shape)

"""The interface of a likelihood: log p(y | output), one value per example.

A likelihood is any object with `log_prob(output, target)` that returns one number per example. `predict` also needs
`probs(output)` (class probabilities) or `moments(output)` (mean and variance). A likelihood with sampled parameters is
an `nn.Module`. Methods that use the Fisher information need `sample(output, generator)`, targets drawn from
p(y | output), or `output_fisher(output)`, the covariance E[∇log p ∇log pᵀ] with respect to the output, of shape
(batch, outputs, outputs).

The library's likelihoods are registered: `@LIKELIHOODS.register` on the class, one import in `likelihoods/__init__.py`.
They have `config()`, the constructor's arguments, which are stored in the manifest of a run.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from langevin.core.registry import Registry

LIKELIHOODS: Registry[type[Any]] = Registry("likelihood")


@runtime_checkable
class Likelihood(Protocol):
    """The interface of a likelihood."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(target | output), of shape (batch,)."""
        ...


def sampled_labels(likelihood: Any, output: Tensor, generator: torch.Generator) -> Tensor:
    """Targets from p(y | output), for the Fisher information."""
    if not hasattr(likelihood, "sample"):
        raise ValueError(
            f"{likelihood!r} has no sample(output, generator), so labels can't be sampled from the model. Add "
            f'this method, or use the training labels: "empirical".'
        )
    labels: Tensor = likelihood.sample(output, generator)
    return labels


def like_output(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The target in the output's shape and dtype; (batch,) and (batch, 1) would broadcast to (batch, batch)."""
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise ValueError(
            f"{name}: the target has shape {tuple(target.shape)}, the model's output {tuple(output.shape)}; "
            f"they must have the same number of values per example."
        )
    return target.to(output.dtype).reshape(output.shape)

"""Binary classification with one logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from langevin.core.likelihoods.base import LIKELIHOODS, like_output
from langevin.core.likelihoods.class_weights import check_class_weights, checked_weights
from langevin.core.random import Source


@LIKELIHOODS.register
class Bernoulli:
    """Labels 0 or 1 with one logit per example, of shape (batch,) or (batch, 1).

    `class_weights` multiply log p of the examples of label 0 and label 1. Their mean over the examples should be 1.
    """

    bounded_curvature = True  # of log p, along the output

    def __init__(self, class_weights: Sequence[float] | Tensor | None = None) -> None:
        self.class_weights = checked_weights("Bernoulli", class_weights)
        if self.class_weights is not None:
            check_class_weights(self, self.class_weights, 2)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log σ(output) where the label is 1, log σ(−output) where it is 0."""
        logit = _one_column("Bernoulli()", output)
        labels = like_output("Bernoulli()", logit, target)
        weight = None
        if self.class_weights is not None:
            weight = torch.where(labels > 0.5, self.class_weights[1], self.class_weights[0])
        return -functional.binary_cross_entropy_with_logits(logit, labels, weight, reduction="none")

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse labels other than 0 and 1."""
        outside = (target != 0) & (target != 1)
        if bool(outside.any()):
            raise ValueError(
                f"Bernoulli() needs labels 0 and 1; found label {target[outside][0].item()} "
                f"({int(outside.sum())} of {target.numel()} labels). Labels −1 and 1: pass (y + 1) / 2."
            )

    def probs(self, output: Tensor) -> Tensor:
        """Probabilities of label 0 and label 1, (batch, 2)."""
        p = _one_column("Bernoulli()", output).sigmoid()
        return torch.stack([1 - p, p], dim=1)

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """1 with probability σ(output), else 0."""
        p = _one_column("Bernoulli()", output).sigmoid()
        return (source.uniform(p) < p).to(p.dtype)

    def output_fisher(self, output: Tensor) -> Tensor:
        """p(1 − p)."""
        p = _one_column("Bernoulli()", output).sigmoid()
        return (p * (1 - p)).reshape(-1, 1, 1)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {} if self.class_weights is None else {"class_weights": self.class_weights}

    def num_outputs(self, target: Tensor) -> int:
        """One."""
        return 1

    def __repr__(self) -> str:
        return "Bernoulli()" if self.class_weights is None else f"Bernoulli(class_weights={self.class_weights})"


def _one_column(name: str, output: Tensor) -> Tensor:
    if output.dim() == 2 and output.shape[1] == 1:
        return output.squeeze(1)
    if output.dim() != 1:
        raise ValueError(
            f"{name} needs one logit per example, (batch,) or (batch, 1); the model's output is {tuple(output.shape)}. "
            f"Several classes: use Categorical(); several independent labels: MultiLabel()."
        )
    return output

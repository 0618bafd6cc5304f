"""Several labels per example, each 0 or 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional

from langevin.core.likelihoods import families
from langevin.core.likelihoods.base import (
    LIKELIHOODS,
    ValueLikelihood,
    diagonal_fisher,
    in_single_precision,
    like_output,
    per_example,
    refuse_outside,
)


@LIKELIHOODS.register
class MultiLabel(ValueLikelihood):
    """Independent labels 0 or 1, one logit for each, of any shape (batch, …): tags, masks of pixels.

    Predictions are values: `mean` is the probability of label 1.
    """

    bounded_curvature = True  # of log p, along the output

    def parameters_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """The logits."""
        return (in_single_precision(output),)

    def distribution(self, *parameters: Tensor) -> Distribution:
        """Bernoulli(σ(logits))."""
        return families.Bernoulli(logits=parameters[0], validate_args=False)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ log σ(±output), with + where the label is 1."""
        (logits,) = self.parameters_of(output)
        labels = like_output(repr(self), logits, target)
        return per_example(-functional.binary_cross_entropy_with_logits(logits, labels, reduction="none"))

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse labels other than 0 and 1."""
        refuse_outside(self, target, (target == 0) | (target == 1), "labels 0 and 1, one for every output")

    def output_fisher(self, output: Tensor) -> Tensor:
        """p(1 − p) for every label."""
        p = self.parameters_of(output)[0].sigmoid()
        return diagonal_fisher(p * (1 - p))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {}

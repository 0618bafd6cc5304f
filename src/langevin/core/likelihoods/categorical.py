"""Classification with one logit per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from langevin.core.likelihoods.base import LIKELIHOODS, sampled_classes
from langevin.core.likelihoods.class_weights import check_class_weights, checked_weights
from langevin.core.random import Source

_NO_LABEL = -(2**63)  # ignore_index: no label is ignored, not even torch's default −100
_FEW_CLASSES = 64  # up to this number of classes the memory layout of softmax matters


@LIKELIHOODS.register
class Categorical:
    """Classes 0 … C−1 with logits of shape (batch, C); with further dimensions (batch, C, …) positions are summed.

    >>> Categorical().log_prob(torch.zeros(3, 4), torch.tensor([0, 1, 3]))
    tensor([-1.3863, -1.3863, -1.3863])

    Args:
        class_weights: multiply log p of the examples of each class, one weight per class. Their mean over the examples
            should be 1, which leaves the temperature as it is: N / (classes · examples of the class), for example.
    """

    bounded_curvature = True  # of log p, along the output

    def __init__(self, class_weights: Sequence[float] | Tensor | None = None) -> None:
        self.class_weights = checked_weights("Categorical", class_weights)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log softmax(output)[target]."""
        chosen = -self._cross_entropy(output, target, "none")
        if self.class_weights is not None:
            chosen = chosen * self._weights(output)[target.long()]
        return chosen.flatten(1).sum(1) if chosen.dim() > 1 else chosen

    def mean_energy(self, output: Tensor, target: Tensor) -> Tensor:
        """Minus the mean of `log_prob` over the examples, in one operation if possible."""
        if output.dim() > 2 or self.class_weights is not None:
            return -self.log_prob(output, target).mean()
        return self._cross_entropy(output, target, "mean")

    def vectorised_mean_energy(self, output: Tensor, target: Tensor) -> Tensor:
        """The same for `torch.func.vmap`, which takes cross_entropy apart into twice as many operations."""
        if output.dim() != 2 or target.is_floating_point() or target.dim() != 1:
            return self.mean_energy(output, target)
        chosen = output.gather(1, target.long().unsqueeze(1)).squeeze(1)
        energy = output.logsumexp(1) - chosen
        return (energy if self.class_weights is None else energy * self._weights(output)[target.long()]).mean()

    def _weights(self, output: Tensor) -> Tensor:
        assert self.class_weights is not None
        check_class_weights(self, self.class_weights, output.shape[1])
        return torch.tensor(self.class_weights, dtype=output.dtype, device=output.device)

    def _cross_entropy(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        if target.is_floating_point() or target.dim() != output.dim() - 1:
            raise ValueError(
                f"Categorical() needs integer class labels of shape (batch,) and logits of shape (batch, classes); "
                f"given {target.dtype} labels of shape {tuple(target.shape)} and logits of shape "
                f"{tuple(output.shape)}. {_remedy(target)} A single logit: use Bernoulli()."
            )
        try:
            return functional.cross_entropy(output, target.long(), reduction=reduction, ignore_index=_NO_LABEL)
        except (RuntimeError, IndexError):
            self.validate(output, target)
            raise

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Raise for labels that are not a class of this output."""
        if target.is_floating_point():
            raise ValueError(f"Categorical() needs integer class labels, not {target.dtype}. {_remedy(target)}")
        classes = output.shape[1]
        if output.dim() == 3 and target.dim() == 2 and output.shape[1] == target.shape[1] != output.shape[2]:
            raise ValueError(
                f"The output has shape {tuple(output.shape)}, with the classes last, as language models have; "
                f"Categorical() expects them second. For the tokens of a sequence: lv.likelihoods.Tokens()."
            )
        if self.class_weights is not None:
            check_class_weights(self, self.class_weights, classes)
        outside = (target < 0) | (target >= classes)
        if bool(outside.any()):
            raise ValueError(
                f"The model has {classes} outputs, so labels must lie in 0 … {classes - 1}; found label "
                f"{int(target[outside][0])} ({int(outside.sum())} of {target.numel()} labels are out of range). "
                f"Renumber the labels from 0, such as y - y.min(), or give the model {int(target.max()) + 1} outputs."
            )

    def probs(self, output: Tensor) -> Tensor:
        """Class probabilities, (batch, C, …)."""
        if output.dim() > 2 or output.shape[1] > _FEW_CLASSES:
            return output.softmax(1)
        # softmax over a short contiguous axis is slow; with the examples contiguous it takes a tenth of the time
        return output.T.contiguous().softmax(0).T

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """Labels drawn from softmax(output)."""
        return sampled_classes(output.softmax(1).movedim(1, -1), source)

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag(p) − p pᵀ."""
        if output.dim() != 2:
            raise ValueError(f"The exact Fisher needs logits of shape (batch, classes); given {tuple(output.shape)}.")
        p = output.softmax(1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def num_outputs(self, target: Tensor) -> int:
        """One per class."""
        return int(target.max()) + 1

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {} if self.class_weights is None else {"class_weights": self.class_weights}

    def __repr__(self) -> str:
        return "Categorical()" if self.class_weights is None else f"Categorical(class_weights={self.class_weights})"


def _remedy(target: Tensor) -> str:
    """What to pass instead of labels of another shape or precision."""
    if target.dim() == 2 and target.shape[1] == 1:
        return f"Labels in a column: pass y.squeeze(1){'.long()' if target.is_floating_point() else ''}."
    if target.dim() > 1:
        return "One-hot labels: pass y.argmax(1)."
    if target.is_floating_point() and bool((target == target.round()).all()):
        return "Labels in floating point: pass y.long(), or of an array y.astype('int64')."
    return "Real-valued targets: lv.likelihoods.Gaussian."

"""Labels of the positions of a sequence: language models and token classification."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from langevin.core.likelihoods.base import LIKELIHOODS, in_single_precision, sampled_classes
from langevin.core.random import Source

IGNORED = -100  # the label of positions that do not count


@LIKELIHOODS.register
class Tokens:
    """A label at every position, with logits of shape (batch, positions, classes) and labels (batch, positions).

    An example is a sequence: log p is the sum over its positions, and num_data counts sequences, not tokens. A mean
    over tokens, as language models report it, would raise the temperature to the mean number of tokens of a sequence
    (and weigh tokens of short sequences more).

    Args:
        shift: the logits at a position are about the label of the next one, as in causal language models whose labels
            are their input_ids. False for token classification and masked language models.

    Positions with the label −100, torch's `ignore_index`, do not count: padding, the prompt.

    >>> logits, labels = torch.zeros(1, 3, 5), torch.tensor([[1, 4, -100]])
    >>> Tokens().log_prob(logits, labels), Tokens(shift=False).log_prob(logits, labels)
    (tensor([-1.6094]), tensor([-3.2189]))
    """

    bounded_curvature = True  # of log p, along the output

    def __init__(self, shift: bool = True) -> None:
        self.shift = shift

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ over positions of log softmax(output)[target]."""
        if output.dim() != 3 or target.shape != output.shape[:2] or target.is_floating_point():
            raise ValueError(
                f"{self!r} needs logits of shape (batch, positions, classes) and integer labels of shape (batch, "
                f"positions); given {tuple(output.shape)} and {target.dtype} {tuple(target.shape)}. One label per "
                f"sequence: Categorical()."
            )
        output, target = in_single_precision(output), target.long()
        if self.shift:
            output, target = output[:, :-1], target[:, 1:]
        each = functional.cross_entropy(output.mT, target, reduction="none", ignore_index=IGNORED)
        return -each.sum(1)

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Raise for labels that are not a class of this output, and if no position counts."""
        counted = target != IGNORED
        outside = counted & ((target < 0) | (target >= output.shape[-1]))
        if bool(outside.any()):
            raise ValueError(
                f"The model has {output.shape[-1]} outputs at each position, so labels must lie in 0 … "
                f"{output.shape[-1] - 1} or be {IGNORED}, which is ignored; found {int(target[outside][0])}."
            )
        if not bool((counted[:, 1:] if self.shift else counted).any()):
            raise ValueError(
                f"No position has a label other than {IGNORED}, so the data say nothing. Give labels of "
                f"{'the following positions' if self.shift else 'some positions'}, such as input_ids."
            )

    def probs(self, output: Tensor) -> Tensor:
        """Class probabilities, (batch, classes, positions); with `shift` those of the next position."""
        return in_single_precision(output).softmax(-1).mT

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """Labels drawn from softmax(output); with `shift` those of the next position, and the first is ignored."""
        labels = sampled_classes(in_single_precision(output).softmax(-1), source)
        if self.shift:
            first = torch.full_like(labels[:, :1], IGNORED)
            labels = torch.cat([first, labels[:, :-1]], 1)
        return labels

    def num_outputs(self, target: Tensor) -> int:
        """One per class."""
        return int(target.max()) + 1

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"shift": self.shift}

    def __repr__(self) -> str:
        return f"Tokens(shift={self.shift})"

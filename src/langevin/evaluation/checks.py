"""Validation of class probabilities and labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from langevin.core.devices import as_tensor


def checked_probs(probs: Any) -> Tensor:
    """Class probabilities (n, classes) in double precision, validated."""
    given: Tensor = as_tensor(probs).detach()
    if given.dim() != 2 or len(given) == 0:
        raise ValueError(f"Class probabilities have the shape (n, classes), n ≥ 1; given {tuple(given.shape)}.")
    given = given.double()
    wrong = ~((given.sum(1) - 1).abs() < 1e-3) | (given < 0).any(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"Probabilities must be 0 or more and each row must sum to 1; row {row} sums to "
            f"{float(given[row].sum()):.4g} ({int(wrong.sum())} of {len(given)} rows are wrong). Pass "
            f"prediction.probs, not logits: logits.softmax(1)."
        )
    return given


def checked(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Probabilities (n, classes) and labels (n,) in 0 … classes − 1, validated."""
    probs, labels = checked_probs(probs), as_tensor(labels)
    if labels.shape != probs.shape[:1]:
        raise ValueError(
            f"Scores need probabilities (n, classes) and labels (n,) of the same examples; given shapes "
            f"{tuple(probs.shape)} and {tuple(labels.shape)}. For one-hot labels pass y.argmax(1)."
        )
    labels = labels.to(probs.device)
    whole = labels.long()
    outside = (whole < 0) | (whole >= probs.shape[1]) | (whole != labels)
    if bool(outside.any()):
        raise ValueError(
            f"The prediction has the classes 0 … {probs.shape[1] - 1}; found label {labels[outside][0].item()} "
            f"({int(outside.sum())} of {len(labels)} labels). Is it the test set of this model?"
        )
    return probs, whole

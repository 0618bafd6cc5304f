"""Weights of examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from langevin.core.likelihoods.base import LIKELIHOODS, Likelihood


@LIKELIHOODS.register
class Weighted(nn.Module):
    """A likelihood with a weight for every example: the target is a pair (y, w), log p = w · log p(y | output).

    Weights of mean 1 leave the temperature as it is. A plain target has weight 1, so predictions are evaluated as ever.

    >>> data = (torch.zeros(8, 4), (torch.zeros(8), torch.ones(8)))  # x, (y, w)
    >>> Weighted("gaussian", std=1.0).log_prob(torch.zeros(2), (torch.zeros(2), torch.tensor([1.0, 2.0])))
    tensor([-0.9189, -1.8379])
    """

    def __init__(self, likelihood: Likelihood | str, **options: Any) -> None:
        super().__init__()
        if isinstance(likelihood, str):
            likelihood, options = LIKELIHOODS.named(likelihood)(**options), {}
        if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
            raise ValueError(f"likelihood must be an object with log_prob(output, target); given {likelihood!r}.")
        if options:
            raise ValueError(f"Give a likelihood or its name and options, not both: {likelihood!r}, {options}.")
        self.likelihood: Any = likelihood

    def log_prob(self, output: Tensor, target: Any) -> Tensor:
        """w · log p(y | output)."""
        y, weight = _parts(target)
        log_prob: Tensor = self.likelihood.log_prob(output, y)
        return log_prob if weight is None else log_prob * weight.to(log_prob.dtype).reshape(log_prob.shape)

    def validate(self, output: Tensor, target: Any) -> None:
        """Refuse data without a weight for every example, negative weights, and what the likelihood refuses."""
        y, weight = _parts(target)
        if weight is None:
            raise ValueError(
                f"{self!r} is for data with weights, and these have none. Write data = (x, (y, w)), or leave out "
                f"Weighted."
            )
        if len(weight) != len(y) or weight.numel() != len(y):
            raise ValueError(
                f"{self!r} needs one weight per example; given weights of shape {tuple(weight.shape)} for {len(y)} "
                f"targets. Write data = (x, (y, w)) with w of shape ({len(y)},)."
            )
        if not bool((torch.isfinite(weight) & (weight >= 0)).all() & (weight > 0).any()):
            raise ValueError(f"{self!r}: weights must be finite, 0 or more and not all 0. Write w / w.mean().")
        if hasattr(self.likelihood, "validate"):
            self.likelihood.validate(output, y)

    def __getattr__(self, name: str) -> Any:
        """Predictions are those of the likelihood."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            own = self.__dict__.get("likelihood", self.__dict__.get("_modules", {}).get("likelihood"))
            if own is None or name.startswith("_"):
                raise
            return getattr(own, name)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        own = self.likelihood.config() if hasattr(self.likelihood, "config") else {}
        return {"likelihood": type(self.likelihood).__name__, **own}

    def __repr__(self) -> str:
        return f"Weighted({self.likelihood!r})"


def _parts(target: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(target, Tensor):
        return target, None
    if not (isinstance(target, tuple | list) and len(target) == 2):
        raise ValueError("Weighted(…) takes targets (y, w). Write data = (x, (y, w)).")
    return target[0], target[1]

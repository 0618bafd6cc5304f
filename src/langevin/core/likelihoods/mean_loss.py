"""A loss instead of a likelihood: the model's own, or any function of output and target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from langevin.core.likelihoods.base import Likelihood
from langevin.core.outputs import call, call_whole

_EXAMPLES = 4  # on which the loss is compared with the mean of the losses of each


class MeanLoss:
    """p(y | x, θ) = exp(−loss), for a loss that is a mean over the examples of a batch.

    Without arguments it is the loss that the model returns when it is given the target as `labels`, as models of
    Hugging Face do. `lv.sample` checks on the first batch that it is a mean over examples. That of a causal language
    model is not, it is a mean over tokens: use `Tokens()`.

    Args:
        loss_fn: a function of (output, target), such as `nn.CrossEntropyLoss()`; by default the model's own loss.
        likelihood: what predictions are made with, such as `Categorical()`; without one there are samples only.
        labels: what the model calls its target.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        *,
        likelihood: Likelihood | None = None,
        labels: str = "labels",
    ) -> None:
        self.loss_fn, self.likelihood, self.labels = loss_fn, likelihood, labels
        for name in ("probs", "moments", "parameters_of", "distribution"):  # predictions are those of the likelihood
            if hasattr(likelihood, name):
                setattr(self, name, getattr(likelihood, name))

    def mean_energy(self, model: nn.Module, x: Any, y: Any) -> Tensor:
        """The loss of a batch."""
        if self.loss_fn is not None:
            loss: Any = self.loss_fn(call(model, x), y)
        else:
            returned = call_whole(model, x, **{self.labels: y})
            loss = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", None)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else "no loss"
            raise ValueError(
                f"{self!r} needs one number, the mean loss of the batch; given {given}. Use a model that returns a "
                f"loss when it is called with {self.labels}=…, or give a function: MeanLoss(nn.CrossEntropyLoss())."
            )
        mean: Tensor = loss
        return mean

    @torch.no_grad()
    def check(self, model: nn.Module, x: Any, y: Any) -> None:
        """Raise unless the loss of a few examples is the mean of their losses, which are computed one by one.

        A mean over several entries of each target passes that, if all examples have as many: it is refused by its name.
        """
        entries = y[0].numel() if isinstance(y, Tensor) else 1
        if entries > 1 and (self.loss_fn is None or getattr(self.loss_fn, "reduction", None) == "mean"):
            raise ValueError(
                f"{self!r} is a mean over the {entries} labels of an example, so the temperature would be wrong by "
                f"their number. A mean over tokens is not one over examples: use lv.likelihoods.Tokens(); of several "
                f"yes-or-no labels lv.likelihoods.MultiLabel()."
            )
        x, y = tree_map(lambda t: t[:_EXAMPLES], (x, y))
        count = len(y if isinstance(y, Tensor) else next(iter(y)))
        each = [float(self.mean_energy(model, *tree_map(lambda t, i=i: t[i : i + 1], (x, y)))) for i in range(count)]
        mean, found = sum(each) / count, float(self.mean_energy(model, x, y))
        if abs(found - mean) > 1e-3 * max(1.0, abs(mean)):
            total = abs(found - mean * count) <= 1e-3 * max(1.0, abs(mean * count))
            remedy = (
                'It is their sum: use reduction="mean".'
                if total
                else "A mean over tokens is not one over examples: use lv.likelihoods.Tokens()."
            )
            raise ValueError(
                f"The loss of {count} examples is {found:.4g}, but the mean of their losses, one by one, is "
                f"{mean:.4g}: the temperature would be wrong. {remedy}"
            )

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p of each example, of the likelihood for predictions."""
        if self.likelihood is None:
            raise ValueError(
                "MeanLoss() knows the mean loss of a batch only; for scores of single examples give it the likelihood: "
                "MeanLoss(likelihood=lv.likelihoods.Categorical())."
            )
        return self.likelihood.log_prob(output, target)

    def __repr__(self) -> str:
        own = "" if self.loss_fn is None else f"{getattr(self.loss_fn, '__name__', self.loss_fn)!s}"
        named = "" if self.likelihood is None else f"{', ' if own else ''}likelihood={self.likelihood!r}"
        return f"MeanLoss({own}{named})"

"""Ordered levels: ratings, grades, stages of a disease."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from langevin.core.likelihoods.base import LIKELIHOODS, in_single_precision, refuse_outside, sampled_classes
from langevin.core.random import Source


@LIKELIHOODS.register
class Ordinal(nn.Module):
    """Levels 0 … K−1 with one output f per example: P(y ≤ k) = σ(c_k − f) for cutpoints c_0 < … < c_{K−2}.

    The cutpoints start at the logits of 1/K, 2/K, …; with `sampled=True` they belong to the posterior, as the
    first cutpoint and the logarithms of the gaps (`likelihood.first`, `likelihood.log_gaps`).

    >>> Ordinal(levels=3).probs(torch.zeros(1))
    tensor([[0.3333, 0.3333, 0.3333]], grad_fn=<ExpBackward0>)
    """

    first: Tensor
    log_gaps: Tensor

    def __init__(self, levels: int, *, sampled: bool = True) -> None:
        super().__init__()
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 3:
            raise ValueError(
                f"The number of levels must be an integer of 3 or more; given levels={levels!r}. Write "
                f"Ordinal(levels=5); for two classes Bernoulli()."
            )
        cutpoints = torch.logit(torch.arange(1, levels, dtype=torch.float64) / levels)
        for name, value in (("first", cutpoints[0]), ("log_gaps", cutpoints.diff().log())):
            if sampled:
                self.register_parameter(name, nn.Parameter(value.float()))
            else:
                self.register_buffer(name, value.float(), persistent=False)
        self.levels = levels
        self._config = {"levels": levels, "sampled": sampled}

    @property
    def cutpoints(self) -> Tensor:
        """c_0 < … < c_{K−2}."""
        return torch.cat([self.first[None], self.first + self.log_gaps.exp().cumsum(0)])

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log P(y = k)."""
        each = self._log_probs(output)
        if target.is_floating_point() or target.numel() != len(each):
            raise ValueError(
                f"{self!r} needs integer levels of shape (batch,); given {target.dtype} of shape "
                f"{tuple(target.shape)}. Write y.long()."
            )
        return each.gather(1, target.reshape(-1, 1).long()).squeeze(1)

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse targets that are not one of the levels."""
        inside = (target >= 0) & (target < self.levels)
        low, high = int(target.min()), int(target.max())
        instead = f"Ordinal(levels={max(high - min(low, 0) + 1, 3)})" + (f" and targets y - ({low})" if low < 0 else "")
        refuse_outside(self, target, inside, f"levels 0 … {self.levels - 1}; for these targets write {instead}")

    def probs(self, output: Tensor) -> Tensor:
        """Probabilities of the levels, (batch, K)."""
        return self._log_probs(output).exp()

    def sample(self, output: Tensor, source: Source) -> Tensor:
        """Levels drawn from their probabilities."""
        return sampled_classes(self.probs(output).detach(), source)

    def output_fisher(self, output: Tensor) -> Tensor:
        """Σ_k p_k (∂ log p_k/∂f)²."""
        above = self.cutpoints - self._one_column(output)[:, None]  # of the lower levels; as "below", of the upper ones
        slope = functional.pad(above.sigmoid(), (1, 0)) - functional.pad((-above).sigmoid(), (0, 1))
        return (self.probs(output) * slope.square()).sum(1).reshape(-1, 1, 1)

    def num_outputs(self, target: Tensor) -> int:
        """One."""
        return 1

    def _log_probs(self, output: Tensor) -> Tensor:
        """log(σ(u) − σ(l)) = log σ(u) + log σ(−l) + log(1 − e^{l − u}) with the cutpoints u, l of a level, less f."""
        edges = self.cutpoints - self._one_column(output)[:, None]  # (batch, K − 1)
        upper = functional.pad(functional.logsigmoid(edges), (0, 1))
        lower = functional.pad(functional.logsigmoid(-edges), (1, 0))
        between = torch.log(-torch.expm1(-self.log_gaps.exp()))
        return upper + lower + functional.pad(between, (1, 1))

    def _one_column(self, output: Tensor) -> Tensor:
        output = in_single_precision(output)
        if output.dim() == 2 and output.shape[1] == 1:
            return output.squeeze(1)
        if output.dim() != 1:
            raise ValueError(
                f"{self!r} needs one output per example, (batch,) or (batch, 1); the model's output is "
                f"{tuple(output.shape)}. Unordered classes: Categorical()."
            )
        return output

    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dict(self._config)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return ", ".join(f"{key}={value}" for key, value in self._config.items())

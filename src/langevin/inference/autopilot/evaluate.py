"""Outputs and log-likelihoods of many sets of weights on the same examples."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from langevin.core.batches import Batch, batch_size_of
from langevin.core.likelihoods import Categorical
from langevin.core.outputs import call
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior

_TOGETHER = 1 << 24  # numbers that a vectorised evaluation may produce in a layer


class _OutputAndLogProb(nn.Module):
    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.model = posterior.model
        self.likelihood: Any = posterior.likelihood

    def forward(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        output = call(self.model, x)
        log_prob = self.likelihood.log_prob(output, y)
        if type(self.likelihood) is Categorical:
            output = output.log_softmax(-1)  # logits are not identified
        return output.reshape(len(log_prob), -1), log_prob


class Evaluation:
    """f(x) and log p(y|x, θ) on a batch, for weights stacked along a first axis."""

    def __init__(self, posterior: Posterior, batch: Batch, piece: int = 1000) -> None:
        self._module = _OutputAndLogProb(copy.deepcopy(posterior)).eval().requires_grad_(False)
        self._names = internal_names(self._module)
        device = next(self._module.parameters()).device
        self.x, self.y = tree_map(lambda t: t.to(device), batch)
        self.size = batch_size_of(self.y)
        self._piece = piece
        self._device = device
        self._widest = max(max(p.shape) if p.dim() else 1 for p in self._module.parameters())
        self._convolves = any(isinstance(each, _ConvNd) for each in self._module.modules())

    @torch.no_grad()
    def __call__(self, stack: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs (samples, n, k) and log-likelihoods (samples, n), on the CPU."""
        named = {self._names[name]: tensor.to(self._device) for name, tensor in stack.items()}
        together = 1 if self._convolves else max(1, _TOGETHER // (self._piece * self._widest))
        count = len(next(iter(named.values())))
        rows = []
        for first in range(0, count, together):
            some = {name: tensor[first : first + together] for name, tensor in named.items()}
            parts = [self._pieces(some, start) for start in range(0, self.size, self._piece)]
            rows.append([torch.cat(column, 1).cpu() for column in zip(*parts, strict=True)])
        outputs, log_probs = (torch.cat(column) for column in zip(*rows, strict=True))
        return outputs, log_probs

    def _pieces(self, some: dict[str, Tensor], start: int) -> tuple[Tensor, Tensor]:
        x, y = tree_map(lambda t: t[start : start + self._piece], (self.x, self.y))
        if len(next(iter(some.values()))) == 1:
            output, log_prob = functional_call(self._module, {name: t[0] for name, t in some.items()}, (x, y))
            return output[None], log_prob[None]
        found: tuple[Tensor, Tensor] = vmap(lambda w: functional_call(self._module, w, (x, y)))(some)
        return found


def stack(weights: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Sets of weights along a first axis."""
    return {name: torch.stack([each[name] for each in weights]) for name in weights[0]}

"""BatchNorm statistics for given weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from langevin.core.outputs import call
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior


class _Called(nn.Module):
    """The model as a function of one argument, which may be a tuple or a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        """model(x)."""
        return call(self.model, x)


def estimate_statistics(
    posterior: Posterior, draws: Iterable[Mapping[str, Tensor]], inputs: Iterable[Any]
) -> dict[str, Tensor]:
    """The running statistics after one pass over the inputs with each of the draws, stacked.

    torch's `update_bn` does the pass: the statistics are plain averages over all batches.
    """
    posterior = copy.deepcopy(posterior)
    device = next(posterior.parameters()).device
    inputs = list(inputs)
    found = []
    for weights in draws:
        load_tensors(posterior, weights)
        update_bn(([x] for x in inputs), _Called(posterior.model), device=device)
        found.append({name: buffer.clone() for name, buffer in posterior.running_statistics().items()})
    return {name: torch.stack([statistics[name] for statistics in found]) for name in found[0]}

"""`Objective`: the loss that is minimized or sampled. The engine sees a model only through it.

The contract, which `tests/contract/test_objective.py` checks for every objective:

- `loss(x, y)` is a scalar, Û/N: an unbiased estimate, over random mini-batches, of the energy of all data divided by N.
  N enters only here. `forward(x, y)` is the same number in plain torch operations, for `torch.func` and
  `torch.compile`.
- `trainable_parameters()` are the parameters to update, by name; after `loss(x, y).backward()` each has a gradient.
- `fixed_tensors()` and the trainable parameters together are all that a prediction needs.
- A deep copy is an independent objective: it shares no parameters with the original.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """The loss of a mini-batch, the parameters to update, and N."""

    num_data: int

    @abstractmethod
    def loss(self, x: Any, y: Any) -> Tensor:
        """Û/N on a mini-batch; `x` is the model's input: a tensor, a tuple of arguments or a dict of named ones."""

    @abstractmethod
    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters to update, by name."""

    @abstractmethod
    def fixed_tensors(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers, by name: the rest of what a prediction needs."""

    @property
    def frozen_weights(self) -> int:
        """The number of the model's weights that are not updated."""
        return sum(p.numel() for p in self.parameters() if not p.requires_grad)

    def running_statistics(self) -> dict[str, Tensor]:
        """The buffers that training updates (those of BatchNorm), by name; they are part of a sample of the weights."""
        return {}

    @property
    def stochastic_forward(self) -> bool:
        """Whether the forward pass is random, so that every step has to be seeded."""
        return False

    def set_step(self, step: int) -> None:
        """Called before each step with its number, for objectives that depend on it (KL warm-up)."""

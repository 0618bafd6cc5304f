"""`Objective`: what a step lowers or a chain explores. The engine knows nothing else about a model.

The contract, which `tests/contract/test_objective.py` holds every objective to:

- `loss(x, y)` is a scalar, Û/N: an unbiased estimate, over random mini-batches, of the energy of all data over N. N
  enters here and nowhere else. `forward(x, y)` is the same number in plain operations, for `torch.func` and
  `torch.compile`.
- `trainable_parameters()` are the parameters that move, by name; after `loss(x, y).backward()` each has its gradient.
- `fixed_tensors()` and the trainable parameters together are all that a prediction needs.
- A deep copy is an objective with parameters of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """The loss of a mini-batch, the parameters to move, and N."""

    num_data: int

    @abstractmethod
    def loss(self, x: Any, y: Any) -> Tensor:
        """Û/N on a mini-batch: `x` is what the model takes, a tensor, a tuple of arguments or a dict of named ones."""

    @abstractmethod
    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that move, by name."""

    @abstractmethod
    def fixed_tensors(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers, by name: the rest of what a prediction needs."""

    def running_statistics(self) -> dict[str, Tensor]:
        """The buffers that training moves (those of BatchNorm), by name; they belong to a sample of the weights."""
        return {}

    @property
    def stochastic_forward(self) -> bool:
        """Whether two passes over one batch differ, so that every step has to be seeded."""
        return False

    def set_step(self, step: int) -> None:
        """Called before each step with its number, for objectives that change on the way."""

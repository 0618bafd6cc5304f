"""Gibbs draws of prior precisions in the chains of a run; see `langevin.core.precisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.core.precisions import PriorPrecisions
from langevin.samplers import Sampler


class PriorScales:
    """λ of each tensor with a sampled prior scale: (chains,) of stacked chains, else the posterior's own."""

    def __init__(self, objective: Objective, stepper: Optimizer, numbers: Sequence[int], stacked: bool) -> None:
        moves = isinstance(stepper, Sampler) and stepper.injects_noise and stepper.param_groups[0]["temperature"] > 0
        self._precisions = objective.precisions if isinstance(objective, Posterior) else PriorPrecisions()
        self.names = list(self._precisions.priors)
        self._moves, self._numbers, self._stacked, self._stepper = moves, list(numbers), stacked, stepper
        self._first = {name: self._precisions.value(name).clone() for name in self.names}
        self._values = {name: first.expand(len(numbers)).clone() for name, first in self._first.items()}

    def inputs(self) -> dict[str, Tensor]:
        """What `functional_call` on the posterior takes beside the weights of stacked chains."""
        return {self._precisions.internal_name(name): value for name, value in self._values.items()}

    def redraw(self, params: Mapping[str, Tensor], seed: int, step: int) -> bool:
        """Draw what is due after that many steps; whether anything was, so that losses and gradients have changed."""
        due = self._precisions.due(step) if self._moves else []
        for name in due:
            drawn = self._precisions.draw(
                name,
                params[name],
                temperature=self._stepper.param_groups[0]["temperature"],
                seed=seed,
                chains=self._numbers,
                step=step,
            )
            self._set(name, drawn)
        return bool(due)

    def reset(self) -> None:
        """Back to the start."""
        for name, first in self._first.items():
            self._set(name, first.expand(len(self._numbers)))

    def of(self, index: int) -> dict[str, Tensor]:
        """λ of a chain, by name: what is saved."""
        return {f"precision/{name}": value[index].clone() for name, value in self._values.items()}

    def restore(self, saved: Sequence[Mapping[str, Tensor]]) -> None:
        """The opposite, of all chains."""
        for name in self.names:
            self._set(name, torch.stack([tensors[f"precision/{name}"].reshape(()) for tensors in saved]))

    @torch.no_grad()
    def _set(self, name: str, values: Tensor) -> None:
        self._values[name].copy_(values)
        if not self._stacked:
            self._precisions.value(name).copy_(values[0])

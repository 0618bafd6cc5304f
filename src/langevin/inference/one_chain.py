"""A single chain, on its own objective."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from langevin.core.devices import on_device
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.inference.chains import Chains, Weights
from langevin.inference.control_variate import ControlVariate


class OneChain(Chains):
    """A single chain, on its own objective."""

    stacked = False

    def _leaves(self, starts: Sequence[Weights]) -> list[Tensor]:
        parameters = self.objective.trainable_parameters()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(starts[0][name])
            for name, buffer in self.buffers.items():
                if name in starts[0]:
                    buffer.copy_(starts[0][name])
        return list(parameters.values())

    def _fetch(self) -> tuple[Any, Any]:
        chain = self.numbers[0]
        batch = self.batches.fetch(chain, self.step) if self.replicas is None else self._part(chain)
        x, y = batch
        device = self.params[0].device
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.device == y.device == device):
            x, y = on_device(batch, device)
        return x, y

    def _losses(self, x: Any, y: Any) -> Tensor:
        if self.replicas is not None:
            loss: Tensor = self._parallel(x, y)
        elif self._whole:
            loss = self.objective.loss(x, y)
        else:
            assert isinstance(self.objective, Posterior)
            loss = self.objective.loss(x, y, gaussian_priors=False)
        return loss

    def _place_center(self, control: ControlVariate) -> None:
        self._center = copy.deepcopy(self.objective)
        load_tensors(self._center, control.center)

    def _center_gradients(self, x: Any, y: Any) -> Sequence[Tensor]:
        return torch.autograd.grad(self._center.loss(x, y), list(self._center.trainable_parameters().values()))

    @cached_property
    def _parallel(self) -> DistributedDataParallel:
        """The objective, whose gradients are averaged while they are computed."""
        assert self.replicas is not None
        return DistributedDataParallel(self.objective, process_group=self.replicas.group)

    def _alone_until(self, last: bool) -> AbstractContextManager[Any]:
        if self.replicas is None or last:
            return nullcontext()
        without: AbstractContextManager[Any] = self._parallel.no_sync()
        return without

    def _average_gradients(self) -> None:
        pass  # DistributedDataParallel has done so

    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        return tensor

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]

"""The chains that advance together: one, or several stacked along a leading axis of every parameter.

Both are a model with its sampler and its scheduler, and know how to be saved and restored chain by chain, so that a
checkpoint does not depend on which of the two wrote it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map

from langevin.core.batches import Batch, Batches, LoaderBatches, batch_size_of, seed_everything, stack_batches
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior
from langevin.diagnostics.temperature import Thermometer
from langevin.errors import RunError
from langevin.inference.distributed import Replicas
from langevin.samplers import Sampler
from langevin.storage.directory import Checkpoint

Weights = Mapping[str, Tensor]
MakeSampler = Callable[..., Sampler]
MakeScheduler = Callable[[Sampler], LRScheduler]
_FROM_CONSTRUCTOR = ("params", "chain")  # entries of a parameter group that a checkpoint does not hold


class Chains(ABC):
    """Chains at the same step. `params` are the leaf tensors that the sampler moves, in the order of `names`."""

    stacked: bool

    def __init__(
        self,
        posterior: Posterior,
        numbers: Sequence[int],
        starts: Sequence[Weights],
        batches: Batches,
        make_sampler: MakeSampler,
        make_scheduler: MakeScheduler | None,
        *,
        seed: int,
        autocast: torch.dtype | None = None,
        accumulate: int = 1,
        compiled: bool = False,
        replicas: Replicas | None = None,
    ) -> None:
        self.posterior = copy.deepcopy(posterior)
        self.numbers = list(numbers)
        self.batches = batches
        self.seed = seed
        self.step = 0
        self.accumulate = accumulate
        self.replicas = replicas
        self.leads = replicas is None or replicas.rank == 0  # whether this process keeps samples and checkpoints
        self._weight = (
            1.0  # of this process's loss in the mean over replicas: its share of the batch times their number
        )
        self._autocast = autocast
        self._random_forward = posterior.stochastic_forward
        self.names = list(self.posterior.trainable_parameters())
        self.buffers = self.posterior.running_statistics()
        self.params = self._leaves(starts)
        chain: int | list[int] = self.numbers if self.stacked else self.numbers[0]
        self.sampler = make_sampler(self.params, num_data=posterior.num_data, seed=seed, chain=chain)
        self.sampler.bind(self.posterior, batches)
        self.scheduler = make_scheduler(self.sampler) if make_scheduler else None
        self.thermometer = Thermometer(self.params, posterior.num_data, self.stacked)
        if compiled:
            self._losses = torch.compile(self._losses, dynamic=False)  # type: ignore[method-assign]
            self.sampler.compile()

    def backward(self) -> list[float]:
        """Gradients of the loss of this step into `params`; the loss of each chain."""
        x, y = self._fetch()
        if self._random_forward:
            seed_everything(self.seed, self.numbers[0], self.step)
        self.posterior.set_step(self.step)
        self.sampler.zero_grad()
        total = torch.zeros(len(self.numbers), device=self.params[0].device)
        for n, (share, piece) in enumerate(self._pieces(x, y), 1):
            with self._alone_until(n == self.accumulate):
                with self._precision():
                    losses = self._losses(*piece) * (share * self._weight)
                losses.sum().backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
        if self.replicas is not None:
            self._average_gradients()
            total = self.replicas.average(total)
        return [float(loss) for loss in total.tolist()]

    def check_replicas(self) -> None:
        """Raise unless all processes that move these chains have the same weights."""
        if self.replicas is not None:
            self.replicas.check(self.params, self.step)

    def agree(self, wish: bool) -> bool:
        """Whether one of the processes that move these chains wishes so."""
        return wish if self.replicas is None else self.replicas.any(wish)

    def advance(self) -> None:
        """One step of the sampler and of its schedule."""
        self.sampler.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.step += 1

    def lr(self) -> float:
        """The learning rate of the next step (of the first parameter group)."""
        return float(self.sampler.param_groups[0]["lr"])

    def observables(self) -> dict[str, list[float]]:
        """What the sampler shows of its state ("kinetic", "thermostat"): the mean over the weights of each chain."""
        shown = {}
        for name, tensors in self.sampler.observables().items():
            rows = torch.cat([t.reshape(len(self.numbers), -1) for t in tensors], dim=1)
            shown[name] = rows.mean(1, dtype=torch.float64).tolist()
        return shown

    def sample(self, index: int) -> dict[str, Tensor]:
        """The weights of a chain (the buffers that belong to them too), as they are now."""
        weights = {name: self._slice(p.detach(), index) for name, p in zip(self.names, self.params, strict=True)}
        return weights | self.buffers

    def copy(self, index: int) -> dict[str, Tensor]:
        """The same, not to change with the next step."""
        return {name: tensor.clone() for name, tensor in self.sample(index).items()}

    def checkpoint(self, index: int, values: dict[str, Any]) -> Checkpoint:
        """All that a chain needs to go on, with plain values of the caller's."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.sample(index).items()}
        plain: dict[str, dict[str, Any]] = {}
        for name, p in zip(self.names, self.params, strict=True):
            for key, value in self.sampler.state[p].items():
                if isinstance(value, Tensor):
                    tensors[f"state/{name}/{key}"] = self._slice(value, index)
                else:
                    plain.setdefault(name, {})[key] = value
        for name, a in zip(self.names, self.thermometer.anchor, strict=True):
            tensors[f"anchor/{name}"] = self._slice(a, index)
        groups = [
            {key: value for key, value in group.items() if key not in _FROM_CONSTRUCTOR}
            for group in self.sampler.param_groups
        ]
        own = {
            "groups": groups,
            "state": plain,
            "schedule": self.scheduler.state_dict() if self.scheduler else None,
            "averaged": self.thermometer.averaged,
            "position": self.batches.position(),
        }
        return Checkpoint(self.step, tensors, {**own, **values})

    @torch.no_grad()
    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Continue from these checkpoints, one for each chain, all at the same step; the weights are theirs already."""
        first = checkpoints[0]
        self.step = first.step
        for name, p, a in zip(self.names, self.params, self.thermometer.anchor, strict=True):
            a.copy_(self._joined([c.tensors[f"anchor/{name}"] for c in checkpoints]))
            prefix = f"state/{name}/"
            for key in [key for key in first.tensors if key.startswith(prefix)]:
                joined = self._joined([c.tensors[key] for c in checkpoints])
                # torch's optimizers count their steps in a scalar that has to stay on the CPU
                self.sampler.state[p][key.removeprefix(prefix)] = joined.to(p.device) if joined.dim() else joined
            self.sampler.state[p].update(first.values["state"].get(name, {}))
        if len(first.values["groups"]) != len(self.sampler.param_groups):
            raise RunError("The sampler has other parameter groups than the one that wrote the checkpoint.")
        for group, saved in zip(self.sampler.param_groups, first.values["groups"], strict=True):
            group.update(saved)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(first.values["schedule"])
        self.thermometer.averaged = first.values["averaged"]
        self.batches.rewind(self.numbers[0], self.step, first.values["position"])

    def _pieces(self, x: Any, y: Any) -> Iterator[tuple[float, tuple[Any, Any]]]:
        """The micro-batches of a batch, each with its share of the examples."""
        if self.accumulate == 1:
            yield 1.0, (x, y)
            return
        axis = 1 if self.stacked else 0
        size = batch_size_of(tree_map(lambda t: t[0], y) if self.stacked else y)
        if not 1 <= self.accumulate <= size:
            raise ValueError(f"accumulate={self.accumulate} pieces of a batch of {size} examples; give 1 to {size}.")
        bounds = [size * i // self.accumulate for i in range(self.accumulate + 1)]
        for start, stop in pairwise(bounds):
            yield (stop - start) / size, tree_map(lambda t, a=start, n=stop - start: t.narrow(axis, a, n), (x, y))

    _weight = (
        1.0  # of the loss of this process in the mean over the replicas: its share of the batch times their number
    )

    def _part(self, chain: int) -> Batch:
        """The part of a mini-batch that belongs to this process."""
        assert self.replicas is not None
        batch, share = self.batches.fetch_part(chain, self.step, self.replicas.rank, self.replicas.size)
        self._weight = share * self.replicas.size
        return batch

    @abstractmethod
    def _average_gradients(self) -> None:
        """Average the gradients over the replicas, if that was not done on the way."""

    def _alone_until(self, last: bool) -> AbstractContextManager[Any]:
        """Inside, unless this is the last piece of a batch, replicas need not exchange gradients."""
        return nullcontext()

    @abstractmethod
    def _leaves(self, starts: Sequence[Weights]) -> list[Tensor]:
        """The parameters at their starting points."""

    @abstractmethod
    def _fetch(self) -> tuple[Any, Any]:
        """The mini-batch of this step."""

    @abstractmethod
    def _losses(self, x: Any, y: Any) -> Tensor:
        """The loss of each chain, (chains,)."""

    @abstractmethod
    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        """What belongs to one chain."""

    @abstractmethod
    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """The opposite of `_slice`."""

    def _precision(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.params[0].device.type, dtype=self._autocast)


class OneChain(Chains):
    """A single chain, on its own copy of the model."""

    stacked = False

    def _leaves(self, starts: Sequence[Weights]) -> list[Tensor]:
        parameters = self.posterior.trainable_parameters()
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
        x, y = tree_map(lambda t: t.to(self.params[0].device, non_blocking=True), batch)
        return x, y

    def _losses(self, x: Any, y: Any) -> Tensor:
        loss: Tensor = self.posterior.loss(x, y) if self.replicas is None else self._parallel(x, y)
        return loss.reshape(1)

    @cached_property
    def _parallel(self) -> DistributedDataParallel:
        """The posterior, whose gradients are averaged while they are computed."""
        assert self.replicas is not None
        return DistributedDataParallel(self.posterior, process_group=self.replicas.group)

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


class StackedChains(Chains):
    """Several chains as one vectorised computation (`torch.func.vmap`); for element-wise samplers."""

    stacked = True

    def _leaves(self, starts: Sequence[Weights]) -> list[Tensor]:
        if self.buffers:
            raise ValueError("running statistics can't be carried by stacked chains.")
        if isinstance(self.batches, LoaderBatches):
            raise ValueError("a DataLoader feeds one chain after another.")
        names = internal_names(self.posterior)
        self._internal = [names[name] for name in self.names]
        device = next(self.posterior.parameters()).device
        return [torch.stack([s[name].to(device) for s in starts]).requires_grad_() for name in self.names]

    def _fetch(self) -> tuple[Any, Any]:
        if self.replicas is None:
            batch = self.batches.fetch_stacked(self.numbers, self.step)
        else:
            batch = stack_batches([self._part(chain) for chain in self.numbers])
        x, y = tree_map(lambda t: t.to(self.params[0].device), batch)
        return x, y

    def _average_gradients(self) -> None:
        assert self.replicas is not None
        self.replicas.average_gradients(self.params)

    def _losses(self, x: Any, y: Any) -> Tensor:
        weights = dict(zip(self._internal, self.params, strict=True))
        losses: Tensor = vmap(lambda w, a, b: functional_call(self.posterior, w, (a, b)))(weights, x, y)
        return losses

    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        return tensor[index]

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(tensors))

"""The chains that advance together: one (`one_chain`), or several stacked along a leading axis (`stacked_chains`).

Both are an objective with its stepper and its scheduler, and know how to be saved and restored chain by chain, so that
a checkpoint does not depend on which of the two wrote it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core import sharding
from langevin.core.batches import Batch, Batches, LoaderBatches, batch_size_of, seeded
from langevin.core.devices import as_tensor
from langevin.core.full_batches import FullBatches
from langevin.core.objective import Objective
from langevin.core.parameters import all_finite, half_precision, nonfinite_example
from langevin.core.posterior import Posterior
from langevin.diagnostics.temperature import Thermometer
from langevin.inference.control_variate import ControlVariate
from langevin.inference.distributed import Replicas
from langevin.inference.noise_rate import bind_sampler
from langevin.inference.prior_scales import PriorScales
from langevin.inference.steppers import SchedulerFactory, StepperFactory
from langevin.kernels import updates
from langevin.samplers import Sampler
from langevin.storage.base import Checkpoint

Weights = Mapping[str, Tensor]
_FROM_CONSTRUCTOR = ("params", "chain")  # entries of a parameter group that a checkpoint does not hold


class Chains(ABC):
    """Chains at the same step. `params` are the leaf tensors that the stepper moves, in the order of `names`.

    The objective is taken over: its parameters move, or, of stacked chains, stay as they are.
    """

    stacked: bool
    warm = False  # whether these very objects have taken a step: what is to be compiled is

    def __init__(
        self,
        objective: Objective,
        numbers: Sequence[int],
        starts: Sequence[Weights],
        batches: Batches,
        make_stepper: StepperFactory,
        make_scheduler: SchedulerFactory | None,
        *,
        seed: int,
        autocast: torch.dtype | None = None,
        grad_accumulation_steps: int = 1,
        compiled: bool = False,
        replicas: Replicas | None = None,
        control: ControlVariate | None = None,
        burn_in: int = 0,
    ) -> None:
        self.objective = objective
        self.control = control
        if control is not None:
            self._place_center(control)
        self.numbers = list(numbers)
        self.batches, self.seed, self.step = batches, seed, 0
        self.grad_accumulation_steps = grad_accumulation_steps
        self.replicas = replicas
        self.leads = replicas is None or replicas.rank == 0  # whether this process writes samples and checkpoints
        self._weight = 1.0  # of this process's loss in the mean over replicas: its share of the batch times their count
        self._autocast = autocast
        self._stochastic = objective.stochastic_forward
        self.names = list(objective.trainable_parameters())
        self.buffers = objective.running_statistics()
        self.params = self._leaves(starts)
        self._on_cpu = self.params[0].is_cpu
        chain: int | list[int] = self.numbers if self.stacked else self.numbers[0]
        self.stepper = make_stepper(self.params, num_data=objective.num_data, seed=seed, chain=chain)
        self._noise_rate = bind_sampler(self.stepper, objective, self.names, self.params, batches, burn_in)
        if isinstance(self.stepper, Sampler):
            self.stepper.plan(burn_in)
            self.stepper.looks_for_divergence = self._on_cpu  # elsewhere the losses tell
        self.scheduler = make_scheduler(self.stepper) if make_scheduler else None
        self.thermometer = Thermometer(self.params, objective.num_data, self.stacked, objective.frozen_weights)
        self.prior_scales = PriorScales(objective, self.stepper, self.numbers, self.stacked)
        self._prior_constant = self._fuse_prior()  # None unless the update adds the gradient of the Gaussian priors
        self._whole = True  # whether the last loss and gradient have all terms of the prior
        self._ahead: Tensor | None = None  # the losses at these weights, if the step before has left their gradients
        self._fresh = (  # for `reset`
            [{k: v for k, v in group.items() if k != "params"} for group in self.stepper.param_groups],
            copy.deepcopy(self.scheduler.state_dict()) if self.scheduler else None,
            {p: _cloned(state) for p, state in self.stepper.state.items()},  # such as a metric that was given
        )
        if compiled:
            self._compile()

    def backward(self, whole: bool = True) -> list[float]:
        """The same as numbers, which on a device other than the CPU makes the host wait."""
        return [float(loss) for loss in self.losses_and_gradients(whole).reshape(-1).tolist()]

    def losses_and_gradients(self, whole: bool = True) -> Tensor:
        """Gradients of the loss of this step into `params`; the loss of each chain.

        Unless `whole`, the terms of Gaussian priors are left to `advance`, if its update can add them; `prior_losses`
        then says what they were.
        """
        self._whole = whole or self._prior_constant is None
        return self._losses_and_gradients() if self._ahead is None else self._ahead

    def _losses_and_gradients(self) -> Tensor:
        """On the batch of this step, at the weights as they are; the closure of samplers that need one."""
        x, y = self._batch = self._fetch()
        with seeded(self.seed, self.numbers[0], self.step) if self._stochastic else nullcontext():
            return self._gradients(x, y)

    def _gradients(self, x: Any, y: Any) -> Tensor:
        self.objective.set_step(self.step)
        self.stepper.zero_grad()
        total: Tensor | None = None
        for n, (share, piece) in enumerate(self._pieces(x, y), 1):
            with self._alone_until(n == self.grad_accumulation_steps):
                losses = self._accumulate(*piece, share * self._weight)
            total = losses if total is None else total + losses
            if self.control is not None:
                self._reduce_variance(*piece, share)
        assert total is not None
        if self.replicas is not None:
            self._average_gradients()
            total = self.replicas.average(total)
        return total

    def _accumulate(self, x: Any, y: Any, weight: float) -> Tensor:
        """Add the gradients of the loss, times its weight, to those of `params`; the weighted loss of each chain."""
        with self._precision():
            losses = self._losses(x, y)
            losses = losses if weight == 1 else losses * weight
        (losses.sum() if losses.dim() else losses).backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    def _reduce_variance(self, x: Any, y: Any, share: float) -> None:
        """g ← g − share · (g_b(θ*) − g_all(θ*)), for a part of the batch."""
        assert self.control is not None
        with self._precision():
            at_center = self._center_gradients(x, y)
        for name, p, g in zip(self.names, self.params, at_center, strict=True):
            if p.grad is not None:
                p.grad.add_(self.control.gradient[name] - g, alpha=share)

    def _compile(self) -> None:
        """Compile the loss."""
        self._losses = torch.compile(self._losses, dynamic=False)  # type: ignore[method-assign]

    def check_replicas(self) -> None:
        """Raise unless all processes that move these chains have the same weights."""
        if self.replicas is not None:
            self.replicas.check(self.params, self.step)

    def agree(self, wish: bool) -> bool:
        """Whether one of the processes that move these chains wishes so."""
        return wish if self.replicas is None else self.replicas.any(wish)

    def advance(self) -> None:
        """One step of the stepper and of its schedule."""
        if isinstance(self.stepper, Sampler) and self._prior_constant is not None:
            self.stepper.fuse_prior({} if self._whole else self._decays)
        if isinstance(self.stepper, Sampler) and self.stepper.needs_closure:
            self._ahead = as_tensor(self.stepper.step(self._losses_and_gradients))
        else:
            self.stepper.step()
        if not isinstance(self.stepper, Sampler) and self._on_cpu and self.nonfinite():  # a sampler looks by itself
            raise FloatingPointError(f"{type(self.stepper).__name__} diverged: a weight is no longer finite.")
        if self.scheduler is not None:
            self.scheduler.step()
        self.step += 1
        self._noise_rate.follow(self.step, self.scheduler)
        if self.prior_scales.redraw(dict(zip(self.names, self.params, strict=True)), self.seed, self.step):
            self._ahead = None
            if isinstance(self.stepper, Sampler):
                self.stepper.forget()

    def prior_losses(self) -> list[float]:
        """What the last loss of each chain lacked, after `advance`; empty if nothing."""
        if self._whole or self._prior_constant is None:
            return []
        assert isinstance(self.stepper, Sampler)
        return [energy + self._prior_constant for energy in self.stepper.prior_energies]

    def _fuse_prior(self) -> float | None:
        """Find out whether the update can add the gradient of Gaussian priors; the constant terms of their energy."""
        self._decays: dict[Tensor, float] = {}
        if type(self.objective) is not Posterior or not isinstance(self.stepper, Sampler) or self.replicas is not None:
            return None
        if sharding.any_sharded(self.params) or not updates.enabled() or not all(p.is_cpu for p in self.params):
            return None
        if any(self.stepper.kernel(group, group["params"]) is None for group in self.stepper.param_groups):
            return None
        decays, constant = self.objective.gaussian_decays()
        self._decays = {p: decays[name] for name, p in zip(self.names, self.params, strict=True) if name in decays}
        return constant if self._decays else None

    @property
    def one_batch_each(self) -> bool:
        """Whether batches have a leading axis of chains: a full batch is one for all."""
        return self.stacked and not isinstance(self.batches, FullBatches)

    def nonfinite_example(self, index: int, step: int) -> str:
        """Which example of the mini-batch of a chain at that step contains NaN or infinity; empty if none does."""
        x, y = tree_map(lambda t: t[index], self._batch) if self.one_batch_each else self._batch
        if step != self.step:  # the loss was read later
            x, y = (
                ((), ()) if isinstance(self.batches, LoaderBatches) else self.batches.fetch(self.numbers[index], step)
            )
        indices = self.batches.indices(self.numbers[index], step) if self.replicas is None else None
        return nonfinite_example(x, y, indices)

    def nonfinite(self) -> list[str]:
        """The names of the parameters that are not finite any more."""
        return [name for name, p in zip(self.names, self.params, strict=True) if not all_finite(p)]

    def freeze(self) -> None:
        """Stop what adapts."""
        if isinstance(self.stepper, Sampler):
            self.stepper.freeze()

    def lr(self) -> float:
        """The learning rate of the next step (of the first parameter group)."""
        return float(self.stepper.param_groups[0]["lr"])

    def observables(self) -> dict[str, Tensor]:
        """What the sampler shows of its state ("kinetic", "thermostat"): the mean over the weights of each chain."""
        shown: dict[str, Tensor] = {}
        if not isinstance(self.stepper, Sampler):
            return shown
        chains = len(self.numbers)
        for name, tensors in self.stepper.observables().items():
            sums, size = torch.zeros(chains, dtype=torch.float64, device=self.params[0].device), 0
            for t in tensors:  # one after another: each is computed when its turn comes
                sums += t.reshape(chains, -1).mean(1).double() * (t.numel() // chains)
                size += t.numel() // chains
            shown[name] = sums / size
        return shown

    def sample(self, index: int) -> dict[str, Tensor]:
        """The weights of a chain (the buffers that belong to them too), as they are now."""
        weights = {name: self._slice(p.detach(), index) for name, p in zip(self.names, self.params, strict=True)}
        return weights | self.buffers

    def precisions(self, index: int) -> dict[str, float]:
        """The sampled precisions of priors of a chain, a statistic of its samples."""
        return {name: float(value) for name, value in self.prior_scales.of(index).items()}

    def copy(self, index: int) -> dict[str, Tensor]:
        """The same, not to change with the next step."""
        return {name: tensor.clone() for name, tensor in self.sample(index).items()}

    def checkpoint(self, index: int, values: dict[str, Any]) -> Checkpoint:
        """All that a chain needs to go on, with plain values of the caller's."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.sample(index).items()}
        plain: dict[str, dict[str, Any]] = {}
        for name, p in zip(self.names, self.params, strict=True):
            for key, value in self.stepper.state[p].items():
                if isinstance(value, Tensor):
                    shared = value.dim() == 0  # torch's optimizers count their steps in a scalar
                    tensors[f"state/{name}/{key}"] = value if shared else self._slice(value, index)
                else:
                    plain.setdefault(name, {})[key] = value
        tensors |= self.thermometer.tensors(index, self.names) | self.prior_scales.of(index)
        groups = [
            {key: value for key, value in group.items() if key not in _FROM_CONSTRUCTOR}
            for group in self.stepper.param_groups
        ]
        own = {
            "groups": groups,
            "state": plain,
            "schedule": self.scheduler.state_dict() if self.scheduler else None,
            "thermometer": self.thermometer.values(),
            "position": self.batches.position(),
        }
        return Checkpoint(self.step, tensors, {**own, **values})

    @torch.no_grad()
    def reset(self, starts: Sequence[Weights]) -> None:
        """Back to the start, as if no step had been taken."""
        for name, p in zip(self.names, self.params, strict=True):
            p.copy_(self._joined([start[name] for start in starts]))
            p.grad = None
        self.stepper.state.clear()
        groups, schedule, state = self._fresh
        for p, own in state.items():
            self.stepper.state[p].update(_cloned(own))
        for group, fresh in zip(self.stepper.param_groups, groups, strict=True):
            group.update(fresh)
        if self.scheduler is not None and schedule is not None:
            self.scheduler.load_state_dict(copy.deepcopy(schedule))
        objective = self.objective
        self.thermometer = Thermometer(self.params, objective.num_data, self.stacked, objective.frozen_weights)
        self.prior_scales.reset()
        self.step = 0
        self._ahead = None

    @torch.no_grad()
    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Continue from these checkpoints, one for each chain, all at the same step; the weights are theirs already."""
        first = checkpoints[0]
        self.step = first.step
        if first.step == 0 and "groups" not in first.values:  # a start: the stepper is as its constructor makes it
            self.batches.rewind(self.numbers[0], 0, first.values.get("position", {}))
            return
        for name, p in zip(self.names, self.params, strict=True):
            prefix = f"state/{name}/"
            for key in [key for key in first.tensors if key.startswith(prefix)]:
                parts = [c.tensors[key] for c in checkpoints]
                counts_steps = key.endswith("/step") and not isinstance(self.stepper, Sampler)
                # torch's optimizers count their steps in a scalar that has to stay on the CPU
                joined = parts[0] if counts_steps else self._joined(parts).to(p.device)
                self.stepper.state[p][key.removeprefix(prefix)] = joined
            self.stepper.state[p].update(first.values["state"].get(name, {}))
        self._noise_rate.match(self.stepper, self.params, len(first.values["groups"]))
        for group, saved in zip(self.stepper.param_groups, first.values["groups"], strict=True):
            group.update(saved)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(first.values["schedule"])
        if "thermometer" in first.values:  # not of chains that come from another stage
            self.thermometer.restore([c.tensors for c in checkpoints], first.values["thermometer"], self.names)
        self.prior_scales.restore([c.tensors for c in checkpoints])
        self.batches.rewind(self.numbers[0], self.step, first.values["position"])

    def _pieces(self, x: Any, y: Any) -> Iterator[tuple[float, tuple[Any, Any]]]:
        """The micro-batches of a batch, each with its share of the examples."""
        if self.grad_accumulation_steps == 1:
            yield 1.0, (x, y)
            return
        axis = int(self.one_batch_each)
        size = batch_size_of(tree_map(lambda t: t[0], y) if self.one_batch_each else y)
        if not 1 <= self.grad_accumulation_steps <= size:
            raise ValueError(
                f"grad_accumulation_steps={self.grad_accumulation_steps} for a batch of {size} examples; "
                f"give 1 to {size}."
            )
        bounds = [size * i // self.grad_accumulation_steps for i in range(self.grad_accumulation_steps + 1)]
        for start, stop in pairwise(bounds):
            yield (stop - start) / size, tree_map(lambda t, a=start, n=stop - start: t.narrow(axis, a, n), (x, y))

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
        """The loss of each chain, (chains,), or a scalar of a single one."""

    @abstractmethod
    def _place_center(self, control: ControlVariate) -> None:
        """Prepare `_center_gradients`; called before a stepper hooks into the model."""

    @abstractmethod
    def _center_gradients(self, x: Any, y: Any) -> Sequence[Tensor]:
        """The gradients of the losses at θ*."""

    @abstractmethod
    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        """What belongs to one chain."""

    @abstractmethod
    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """The opposite of `_slice`."""

    def _precision(self) -> AbstractContextManager[Any]:
        return half_precision(self.params[0].device, self._autocast)


def _cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}

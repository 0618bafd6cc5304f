"""What full-batch samplers share: several gradients a step, all weights of a chain in one row, numbers by chain.

Such a sampler is called as `sampler.step(closure)`. The closure zeroes and fills `p.grad` and returns the loss Û/N on
all data: a number, or for stacked chains a tensor (chains,). It has to be the same function of the weights at every
call. `step` returns the loss at the new weights, and `p.grad` is the gradient there, so that no gradient is computed
twice: the next step begins with it, unless the weights have been changed in between.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.core import random
from langevin.core.devices import as_tensor
from langevin.core.random import Stream
from langevin.samplers.base import Group, Sampler, store_metric

Closure = Callable[[], float | Tensor]
_SHOWN = 100  # steps after which an lr that adapts on a device is read


class Rows:
    """The weights of each chain as one row, θ: (chains, d), and tensors of that shape by parameter."""

    def __init__(self, group: Group) -> None:
        self.params: list[Tensor] = group["params"]
        self.chains: tuple[int, ...] = (group["chain"],) if isinstance(group["chain"], int) else group["chain"]
        self.sizes = [p.numel() // len(self.chains) for p in self.params]
        self.theta = self.params[0].new_empty(len(self.chains), sum(self.sizes))
        self.normals = torch.empty_like(self.theta)
        self.states: dict[str, tuple[Tensor, list[Tensor]]] = {}
        self.loss: Tensor | None = None  # (chains, 1), float64, at θ, and its gradient
        self.gradient = self.theta
        self._leaves = [p.detach() for p in self.params]
        self._thetas = self.by_parameter(self.theta)
        self._versions: list[int] = []

    def by_parameter(self, rows: Tensor) -> list[Tensor]:
        """Views with the shapes of the parameters."""
        return [part.view(p.shape) for part, p in zip(torch.split(rows, self.sizes, 1), self.params, strict=True)]

    def joined(self, tensors: Iterable[Tensor]) -> Tensor:
        """The opposite, a copy."""
        return torch.cat([t.reshape(len(self.chains), -1) for t in tensors], 1)

    def read(self) -> bool:
        """Whether the weights were changed since `write`; if so, θ is read from them."""
        if self._versions == [p._version for p in self.params]:
            return False
        self.theta.copy_(self.joined(self._leaves))
        return True

    def moved(self) -> bool:
        """Whether the parameters are elsewhere in memory now, as after `model.to(device)`."""
        return any(a.data_ptr() != b.data_ptr() for a, b in zip(self._leaves, self.params, strict=True))

    def write(self) -> None:
        """Write θ to the parameters."""
        torch._foreach_copy_(self._leaves, self._thetas)
        self._versions = [p._version for p in self.params]

    def gradients(self) -> Tensor:
        """The gradients of all parameters; 0 of one that the loss does not depend on."""
        return self.joined(torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)


class FullBatchSampler(Sampler, ABC):
    """Base class of samplers that take several gradients of all data in a step; one parameter group.

    In `update`, params, grads and normals are lists of one tensor (chains, d): all weights of each chain in a row.
    """

    full_batch: ClassVar[bool] = True
    needs_closure: ClassVar[bool] = True
    adapts: bool = True
    shardable = False
    shows_order = False
    _rows: Rows | None = None
    _closure: Closure | None = None

    def __init__(self, params: Iterable[Any], *, metric: Sequence[Tensor] | None, **settings: Any) -> None:
        super().__init__(params, frozen=False, evaluations=0, **settings)
        if metric is not None:
            self.set_metric(metric)

    def add_param_group(self, param_group: Group) -> None:
        """Add the only group of parameters."""
        super().add_param_group(param_group)
        name, group = type(self).__name__, self.param_groups[-1]
        if len(self.param_groups) > 1:
            raise ValueError(f"{name} moves all weights together: give it one parameter group; given several.")
        if len({(p.dtype, p.device) for p in group["params"]}) > 1:
            raise ValueError(f"{name} needs all parameters in one precision and on one device: model.float().")
        if group["temperature"] == 0:
            raise ValueError(f"{name} needs temperature > 0; given temperature=0. Write lv.find_map(…) for an optimum.")
        chains = 1 if isinstance(group["chain"], int) else len(group["chain"])
        if sum(p.numel() for p in group["params"]) < 2 * chains:
            raise ValueError(f"{name} needs at least 2 weights; given 1. Use lv.SGHMC.")

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One update; returns the loss at the new weights: a number (on a device, a tensor), or that of each chain."""
        if closure is None:
            raise ValueError(
                f"{type(self).__name__} computes several gradients of all data in a step, so it needs a closure: "
                f"sampler.step(closure), where closure() zeroes the gradients, calls loss.backward() and returns the "
                f"loss. lv.sample(posterior, data, lv.{type(self).__name__}, …) does so."
            )
        group, self._closure = self.param_groups[0], closure
        if self._rows is not None and self._rows.moved():
            self._rows = None
        rows = self._its_rows(group)
        if rows.read() or rows.loss is None:
            rows.loss, rows.gradient = self.evaluate()
            if not bool(rows.loss.isfinite().all()):
                raise FloatingPointError(
                    f"{type(self).__name__} can't start: the loss of all data is {rows.loss.flatten().tolist()}."
                )
        self.update(group, [rows.theta], [rows.gradient], partial(self._normals, group, Stream.INJECTED))
        group["step"] += 1
        self._closure = None
        assert rows.loss is not None
        if not isinstance(group["chain"], int):
            return rows.loss.flatten()
        return float(rows.loss) if rows.loss.is_cpu else rows.loss.reshape(())

    def forget(self) -> None:
        """Compute loss and gradient again in the next step."""
        if self._rows is not None:
            self._rows.loss = None

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """The loss of each chain at θ, (chains, 1) in float64, and its gradient, (chains, d)."""
        assert self._closure is not None
        assert self._rows is not None
        self._rows.write()
        self.param_groups[0]["evaluations"] += 1  # of loss and gradient, since the sampler was made
        with torch.enable_grad():
            loss = as_tensor(self._closure()).detach().to(self._rows.theta.device, torch.float64)
        if loss.numel() != len(self._rows.chains):
            raise ValueError(
                f"The closure returned a loss of shape {tuple(loss.shape)}; expected one number for each of the "
                f"{len(self._rows.chains)} chains. Sum over chains for backward(), but return them all."
            )
        return loss.reshape(-1, 1), self._rows.gradients()

    def arrive(self, good: Tensor, before: tuple[Tensor, Tensor, Tensor], after: tuple[Tensor, Tensor]) -> None:
        """End a step: where it is `good`, (chains, 1), at θ with `after`, loss and gradient; elsewhere where it began.

        `before` are θ, loss and gradient at the beginning.
        """
        rows = self._its_rows(self.param_groups[0])
        rows.loss, rows.gradient = after
        if good.is_cpu and bool(good.all()):  # elsewhere, to ask would make the host wait
            return
        theta, loss, gradient = before
        rows.theta.copy_(torch.where(good, rows.theta, theta))
        rows.loss, rows.gradient = torch.where(good, after[0], loss), torch.where(good, after[1], gradient)
        rows.write()
        for p, g in zip(rows.params, rows.by_parameter(rows.gradient), strict=True):
            if p.grad is not None:
                p.grad.copy_(g)

    # state: rows of d numbers by chain, single numbers by chain

    def by_weight(self, name: str, first: Callable[[], Tensor]) -> Tensor:
        """The state of that name, (chains, d), whose views are in `state` of each parameter; `first()` at first."""
        rows = self._its_rows(self.param_groups[0])
        whole, views = rows.states.get(name, (None, []))
        of = [self.state[p].get(name) for p in rows.params]
        if whole is not None and all(a is b for a, b in zip(of, views, strict=True)):
            return whole
        whole = first() if of[0] is None else rows.joined(t for t in of if t is not None)
        views = rows.by_parameter(whole)
        for p, view in zip(rows.params, views, strict=True):
            self.state[p][name] = view
        rows.states[name] = whole, views
        return whole

    def by_chain(self, name: str, first: float | None = None) -> Tensor:
        """The state of that name, (chains, 1): one number per chain, in `state` of the first parameter.

        `first` is its first value.
        """
        p, chain = self.param_groups[0]["params"][0], self.param_groups[0]["chain"]
        if name not in self.state[p]:
            shape = () if isinstance(chain, int) else (len(chain),)
            self.state[p][name] = p.new_full(shape, math.nan if first is None else first)
        value: Tensor = self.state[p][name]
        return value.view(-1, 1)

    def set_metric(self, metric: Sequence[Tensor]) -> None:
        """Give the square roots of the diagonal metric A, one tensor per parameter: scales of the posterior."""
        store_metric(self, metric)

    def metric(self) -> Tensor | None:
        """A^{1/2}, (chains, d); None if it is 1."""
        p = self.param_groups[0]["params"][0]
        if "metric" not in self.state[p]:
            return None
        return self.by_weight("metric", lambda: torch.ones_like(p))

    def lengths(self, group: Group) -> Tensor:
        """lr of each chain, (chains, 1) in float64: its own, if it is adapted, else the group's."""
        if "lr" in self.state[group["params"][0]]:
            return self.by_chain("lr").double()
        rows = self._its_rows(group)
        return torch.full((len(rows.chains), 1), group["lr"], dtype=torch.float64, device=rows.theta.device)

    def set_lengths(self, group: Group, lr: Tensor) -> None:
        """Set lr of each chain; the group's is their mean, to be shown. On a device, it is read now and then."""
        self.by_chain("lr").copy_(lr)
        if lr.is_cpu or group["frozen"] or group["step"] % _SHOWN == 0:
            group["lr"] = float(self.by_chain("lr").mean())

    def first_normals(self) -> Tensor:
        """Deviates for the state at the start, (chains, d), apart from those of the steps."""
        return self._normals(self.param_groups[0], Stream.MOMENTUM)[0].clone()

    def uniforms(self, group: Group) -> Tensor:
        """A number between 0 and 1 of each chain, (chains, 1)."""
        where = {"seed": group["seed"], "step": group["step"], "stream": Stream.ACCEPT}
        return random.uniforms(self._its_rows(group).chains, **where, device=group["params"][0].device)[:, None]

    def _normals(self, group: Group, stream: Stream) -> list[Tensor]:
        rows = self._its_rows(group)
        random.normal_rows(rows.normals, seed=group["seed"], chains=rows.chains, step=group["step"], stream=stream)
        return [rows.normals]

    def _its_rows(self, group: Group) -> Rows:
        if self._rows is None or self._rows.params is not group["params"]:
            self._rows = Rows(group)
        return self._rows

    def gradient_noise_temperature(self, variance: float) -> float:
        """0 without noise, and NaN with it: full batches have none."""
        return 0.0 if variance == 0 else math.nan

"""The base class of samplers: a `torch.optim.Optimizer` with N, T, a seed, a chain and a step counter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core import random, sharding
from langevin.core.parameters import check_precision
from langevin.core.posterior import Posterior, checked_num_data
from langevin.core.registry import Registry
from langevin.kernels.blocks import Blocks

Group = dict[str, Any]
Normals = Callable[[], list[Tensor]]
Noise = Literal["gaussian", "rademacher"]
_CHECKED = {
    True: 10,
    False: 100,
}  # steps between checks for divergence, on the CPU and on other devices


class _Layout:
    """Positions of a group's weights in the noise stream, and a buffer for the noise of a step."""

    def __init__(self, group: Group) -> None:
        self.params: list[Tensor] = group["params"]
        self.chains: tuple[int, ...] | None = None if isinstance(group["chain"], int) else group["chain"]
        self.sizes = [p.numel() // len(self.chains or (0,)) for p in self.params]  # of one chain
        self.total = sum(self.sizes)
        self.sharded = sharding.any_sharded(self.params)
        self._buffers: list[tuple[int, Tensor]] = []  # offset in the group, and noise of shape (chains, weights)
        self._views: list[Tensor] = []

    def draw(self, group: Group, position: int) -> list[Tensor]:
        """η for the parameters that have a gradient; the group's first weight is number `position` of the stream.

        It overwrites the noise of the previous step.
        """
        numbers = random.NOISES[group.get("noise", "gaussian")]
        seed, step = group["seed"], group["step"]
        if self.sharded:
            return self._draw_shards(partial(numbers, seed=seed, chain=group["chain"], step=step), position)
        if not self._views:
            self._allocate()
        for offset, buffer in self._buffers:
            for chain, row in zip(self.chains or (group["chain"],), buffer, strict=True):
                numbers(len(row), seed=seed, chain=chain, step=step, start=position + offset, out=row)
        return [eta for eta, p in zip(self._views, self.params, strict=True) if p.grad is not None]

    def _draw_shards(self, numbers: Callable[..., Tensor], position: int) -> list[Tensor]:
        """Each process draws the noise of its shards, the same numbers as for unsharded parameters."""
        drawn = []
        for p, size in zip(self.params, self.sizes, strict=True):
            if p.grad is not None:
                part, sharded = sharding.local(p), sharding.is_sharded(p)
                first = position + (sharding.start(p) if sharded else 0)
                eta = numbers(part.numel(), start=first, dtype=p.dtype, device=part.device)
                drawn.append(sharding.alike(eta, p) if sharded else eta.view(p.shape))
            position += size
        return drawn

    def _allocate(self) -> None:
        """One buffer if all parameters share dtype and device, else one per parameter: same numbers, more calls."""
        rows = len(self.chains or (0,))
        alike = len({(p.dtype, p.device) for p in self.params}) == 1
        offset = 0
        for sizes, p in (
            [(self.sizes, self.params[0])]
            if alike
            else [([n], p) for n, p in zip(self.sizes, self.params, strict=True)]
        ):
            buffer = torch.empty(rows, sum(sizes), dtype=p.dtype, device=p.device)
            self._buffers.append((offset, buffer))
            self._views += torch.split(buffer, sizes, dim=1)
            offset += sum(sizes)
        self._views = [eta.view(p.shape) for eta, p in zip(self._views, self.params, strict=True)]


SAMPLERS: Registry[type[Sampler]] = Registry("sampler")


class Sampler(Optimizer, ABC):
    """Base class of all samplers. The class attributes declare the properties of a method.

    The gradient g = ∇Û/N is read from `p.grad` (`posterior.loss(x, y).backward()` puts it there). All else that a step
    depends on is in the parameter groups and in `state`, so `state_dict()` is complete: `lr`, `num_data`,
    `temperature`, `seed`, `chain` and the step counter are plain numbers there.

    The noise is a pure function of (seed, chain, step, position of the weight among all weights); see
    `langevin.core.random`. If `chain` is a sequence of integers, every parameter has a leading axis of that length, one
    slice per chain, and each slice gets the same noise as a single chain of that number.

    `noise="rademacher"` draws random signs in place of normal deviates, several times faster: mean, variance and third
    moment are the same, so the bias stays of order one in lr, but methods of second order become first-order, and the
    noise of a single step is far from normal. For large networks, where drawing noise takes as long as the gradient.
    """

    target: ClassVar[Literal["posterior", "jeffreys", "none"]] = "posterior"  # stationary density as lr → 0
    order: ClassVar[int | None] = 1  # the bias is O(lr**order); None without a target
    shows_order: ClassVar[bool] = True  # visible on a Gaussian target, unless a thermostat cancels the leading term
    citation: ClassVar[str]  # BibTeX

    stackable: bool = True  # several chains can be updated together, along a leading axis of every parameter
    shardable: bool = True  # parameters may be sharded over processes (DTensor)
    adapts: bool = False  # has adaptive state; its target is biased until `freeze` is called
    constant_lr: ClassVar[bool] = False  # requires a constant lr; schedules are refused
    injects_noise: ClassVar[bool] = True  # has a temperature; without one, BatchNorm and dropout are tolerated
    gradients_per_step: ClassVar[int] = 1

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        num_data: int,
        seed: int,
        chain: int | Sequence[int],
        **settings: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "num_data": checked_num_data(num_data),
            "seed": seed,
            "chain": chain if isinstance(chain, int) else tuple(chain),
            "step": 0,
            **settings,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters and check their settings; missing ones default to the constructor's."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        checked_num_data(group["num_data"])
        if not (math.isfinite(group["lr"]) and group["lr"] > 0):
            raise ValueError(f"lr must be positive and finite; given lr={group['lr']}. Try lr=1e-3.")
        temperature = group.get("temperature", 0.0)
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ValueError(
                f"temperature must be 0 or more; given temperature={temperature}. 1 is the Bayes posterior, "
                f"0 plain optimization."
            )
        for name in ("seed", "chain"):
            _check_counter(name, group[name])
        if group.get("noise", "gaussian") not in random.NOISES:
            raise ValueError(f"noise={group['noise']!r}: choose one of {list(random.NOISES)}.")
        if not self.shardable and any(sharding.is_sharded(p) for p in group["params"]):
            raise ValueError(
                f"{type(self).__name__} looks at whole layers, so it can't update sharded parameters (DTensor); use an "
                f"element-wise sampler (lv.SGLD, lv.SGHMC, lv.SGNHT, lv.ATMC, lv.pSGLD), or replicas instead of shards."
            )
        for index, parameter in enumerate(group["params"]):
            check_precision(f"{len(self.param_groups) - 1}.{index}", parameter)
            if not isinstance(group["chain"], int) and parameter.shape[:1] != (len(group["chain"]),):
                raise ValueError(
                    f"With chain={group['chain']} every parameter needs a leading axis of length "
                    f"{len(group['chain'])}; parameter {index} has shape {tuple(parameter.shape)}."
                )

    @staticmethod
    def optimizer_at_zero(params: list[Any], group: Group) -> Optimizer | None:
        """The torch optimizer that equals the method at temperature 0, with these settings; None if there is none."""
        return None

    def bind(self, posterior: Posterior, data: Any = None) -> None:
        """Pass the model and the data to methods that need them; `sample` calls it once per copy of the model."""

    def freeze(self) -> None:
        """Stop adapting, so that the target is exact from here on; `sample` calls it at the end of burn-in."""

    def finish(self) -> None:
        """Called at the end of a step."""

    @abstractmethod
    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """The update equation of the method, in place.

        `normals()` draws η for every parameter; not called at temperature 0.
        """

    @abstractmethod
    def stability_limit(self, curvature: float) -> float:
        """The lr above which the update diverges on a quadratic loss (U/N) of that curvature."""

    @abstractmethod
    def gradient_noise_temperature(self, variance: float) -> float:
        """The temperature added by mini-batch noise of that variance (of one coordinate of g)."""

    def observables(self) -> dict[str, list[Tensor]]:
        """Quantities for diagnostics, one tensor per parameter; empty before the first step.

        Samplers with momentum report "kinetic", u²/s, whose mean over weights is T under the target (equipartition);
        thermostats also "thermostat", ξ.
        """
        return {}

    def _moving(self) -> list[tuple[Group, Tensor]]:
        """The parameters that have a momentum, each with its group."""
        return [
            (group, p) for group in self.param_groups for p in group["params"] if "momentum" in self.state.get(p, {})
        ]

    @property
    def blocks(self) -> Blocks:
        """For element-wise updates; not shared with copies of the sampler."""
        made: Blocks = self.__dict__.setdefault("_blocks", Blocks())
        return made

    def compile(self) -> None:
        """Fuse updates of several passes over memory (thermostats, pSGLD) into one with `torch.compile`.

        It needs a C++ compiler and takes some seconds at the first step; `sample(compile=True)` calls it.
        """
        self.blocks.compile()

    def zeros_at_first(self, name: str, params: list[Tensor]) -> list[Tensor]:
        """The state of that name of each parameter, initialized with zeros."""
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p)
        return [self.state[p][name] for p in params]

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        position = 0
        for index, group in enumerate(self.param_groups):
            layout = self._layout(index, group)
            moved = [p for p in layout.params if p.grad is not None]
            if moved:
                grads = [p.grad for p in moved if p.grad is not None]
                if any(g.is_sparse for g in grads):
                    raise ValueError(
                        "Samplers need dense gradients (every weight gets noise). Use Embedding(sparse=False)."
                    )
                self.update(group, moved, grads, partial(layout.draw, group, position))
                if group["step"] % _CHECKED[moved[0].is_cpu] == 0:
                    self._check_finite(group, moved)
            group["step"] += 1
            position += layout.total
        self.finish()
        return loss

    def _layout(self, index: int, group: Group) -> _Layout:
        """The layout of a group, computed once and not shared with copies of the sampler."""
        known: dict[int, _Layout] = self.__dict__.setdefault("_layouts", {})
        if index not in known or known[index].params is not group["params"]:
            known[index] = _Layout(group)
        return known[index]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as torch's optimizers do, in a tenth of the time."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _check_finite(self, group: Group, params: list[Tensor]) -> None:
        """Raise soon after divergence, while it is still visible in which parameter it started."""
        params = [sharding.local(p) for p in params]
        norms = torch._foreach_norm(params)
        if not math.isfinite(sum(norm.item() for norm in norms)):
            first = next(i for i, p in enumerate(params) if not bool(p.isfinite().all()) or i == len(params) - 1)
            raise FloatingPointError(
                f"{type(self).__name__} diverged before step {group['step'] + 1}: parameter "
                f"{self._name(params[first])} is no longer finite. Lower lr (now {group['lr']:.3g}), or check data "
                f"and loss for values that are not finite."
            )

    def _name(self, parameter: Tensor) -> str:
        """Index and group of a parameter, and its name if the constructor was given named parameters."""
        for index, group in enumerate(self.param_groups):
            for place, other in enumerate(group["params"]):
                if sharding.local(other).data_ptr() == parameter.data_ptr():
                    name = f" ({group['param_names'][place]!r})" if "param_names" in group else ""
                    return f"{place} of group {index}{name}"
        return "?"


def _check_counter(name: str, value: Any) -> None:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(v, int) and 0 <= v < 2**64 for v in values):
        raise ValueError(f"{name} must be an integer from 0 to 2⁶⁴ − 1; given {name}={value!r}.")

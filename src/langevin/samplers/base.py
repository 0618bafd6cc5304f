"""The base class of samplers: a `torch.optim.Optimizer` with N, T, a seed, a chain and a step counter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core import sharding
from langevin.core.parameters import check_precision
from langevin.core.posterior import Posterior, checked_num_data
from langevin.core.registry import Registry
from langevin.kernels import updates
from langevin.kernels.philox import LIMITS
from langevin.kernels.updates import Kernel
from langevin.samplers.layout import Group as Group
from langevin.samplers.layout import Layout

Normals = Callable[[], list[Tensor]]
_CHECKED = {
    True: 10,
    False: 100,
}  # steps between checks for divergence, on the CPU and on other devices


SAMPLERS: Registry[type[Sampler]] = Registry("sampler")


class Sampler(Optimizer, ABC):
    """Base class of all samplers. The class attributes declare the properties of a method.

    The gradient g = ∇Û/N is read from `p.grad` (`posterior.loss(x, y).backward()` puts it there). All else that a step
    depends on is in the parameter groups and in `state`, so `state_dict()` is complete: `lr`, `num_data`,
    `temperature`, `seed`, `chain` and the step counter are plain numbers there.

    The noise is a pure function of (seed, chain, step, position of the weight among all weights); see
    `langevin.core.random`. If `chain` is a sequence of integers, every parameter has a leading axis of that length, one
    slice per chain, and each slice gets the same noise as a single chain of that number.

    A method may declare a compiled update, `kernel`, which equals `update` to rounding and is used wherever it applies.
    """

    target: ClassVar[Literal["posterior", "jeffreys", "none"]] = "posterior"  # stationary density as lr → 0
    order: ClassVar[int | None] = 1  # the bias is O(lr**order); None without a target, or without a bias
    shows_order: ClassVar[bool] = True  # visible on a Gaussian target, unless a thermostat cancels the leading term
    citation: ClassVar[str]  # BibTeX

    stackable: bool = True  # several chains can be updated together, along a leading axis of every parameter
    shardable: bool = True  # parameters may be sharded over processes (DTensor)
    adapts: bool = False  # has adaptive state; its target is biased until `freeze` is called
    constant_lr: ClassVar[bool] = False  # requires a constant lr; schedules are refused
    injects_noise: ClassVar[bool] = True  # has a temperature; without one, BatchNorm and dropout are tolerated
    gradients_per_step: ClassVar[int] = 1
    needs_closure: ClassVar[bool] = False  # called as `step(closure)`; see `langevin.samplers.full_batch`
    explores: ClassVar[bool] = False  # whether burn-in begins with large steps, and settles to small ones after them
    full_batch: ClassVar[bool] = False  # every gradient is that of all data

    looks_for_divergence = True  # now and then, by the norms of the parameters
    prior_energies: Sequence[float] = ()  # see `fuse_prior`
    _decays: Mapping[Tensor, float] = MappingProxyType({})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "update" in vars(cls) and "kernel" not in vars(cls):
            cls.kernel = Sampler.kernel  # type: ignore[method-assign]  # an inherited one computes another update

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
        params = list(params)
        if wrong := [p for p in params if not isinstance(p, Tensor | dict | tuple)]:
            raise ValueError(
                f"params must be parameters or groups of them, posterior.parameters(); given {type(wrong[0]).__name__}."
            )
        defaults = {
            "lr": float(lr) if type(lr) is int else lr,
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
        if not self.shardable and any(sharding.is_sharded(p) for p in group["params"]):
            raise ValueError(
                f"{type(self).__name__} looks at whole layers, so it can't update sharded parameters (DTensor); use an "
                f"element-wise sampler (lv.SGLD, lv.SGHMC, lv.SGNHT, lv.ATMC, lv.pSGLD), or replicas instead of shards."
            )
        for index, parameter in enumerate(group["params"]):
            if parameter.requires_grad:  # a frozen base may be in half precision
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

    def plan(self, burn_in: int) -> None:
        """Tell the length of burn-in to methods that adapt; `sample` calls it before the first step."""

    def forget(self) -> None:
        """Discard what was computed at the present weights: the target has changed (a prior scale was drawn)."""

    def freeze(self) -> None:
        """Stop adapting, so that the target is exact from here on; `sample` calls it at the end of burn-in."""

    def finish(self) -> None:
        """Called at the end of a step."""

    @abstractmethod
    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """The update equation of the method, in place.

        `normals()` draws η for every parameter; not called at temperature 0.
        """

    def kernel(self, group: Group, params: list[Tensor]) -> Kernel | None:
        """The compiled update that equals `update` for these parameters; None if there is none."""
        return None

    @abstractmethod
    def stability_limit(self, curvature: float) -> float:
        """The lr above which the update diverges on a quadratic loss (U/N) of that curvature."""

    @abstractmethod
    def gradient_noise_temperature(self, variance: float) -> float:
        """The temperature added by mini-batch noise of that variance (of one coordinate of g)."""

    def observables(self) -> dict[str, Iterable[Tensor]]:
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

    @overload
    def step(self, closure: Callable[[], Tensor]) -> Tensor: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.prior_energies = ()
        position = 0
        for index, group in enumerate(self.param_groups):
            layout = self._layout(index, group, position)
            if moved := [p for p in layout.params if p.grad is not None]:
                self._move(group, layout, moved)
                if self.looks_for_divergence and group["step"] % _CHECKED[moved[0].is_cpu] == 0:
                    self._check_finite(group, moved)
            group["step"] += 1
            position = layout.after
        self.finish()
        return loss

    def _move(self, group: Group, layout: Layout, params: list[Tensor]) -> None:
        """Update parameters: by the compiled update if there is one, and what that can't take by `update`."""
        if any(p.grad.is_sparse for p in params if p.grad is not None):
            raise ValueError("Samplers need dense gradients (every weight gets noise). Use Embedding(sparse=False).")
        kernel = self.kernel(group, params) if self._may_be_compiled(group, params) else None
        if kernel is not None:
            for name in kernel.state:
                self.zeros_at_first(name, params)
            params, energies = layout.run(kernel, group, params, self.state, self._decays)
            self._add_energies(energies)
        if not params:
            return
        grads = [p.grad for p in params if p.grad is not None]
        if self._decays:
            decays = [self._decays.get(p, 0.0) for p in params]
            grads = [g.add(p, alpha=decay) for g, p, decay in zip(grads, params, decays, strict=True)]
            squares = [p.reshape(len(layout.chains), -1).square().sum(1) for p in params]
            rows = torch.stack([s * (d / 2) for s, d in zip(squares, decays, strict=True)])
            self._add_energies(rows.sum(0, dtype=torch.float64).tolist())
        self.update(group, params, grads, partial(layout.draw, group, params))

    def _may_be_compiled(self, group: Group, params: list[Tensor]) -> bool:
        """Compiled updates take lr as a number; Triton's take the step as a tensor too, but no gradient of a prior."""
        if not updates.enabled() or isinstance(group["lr"], Tensor):
            return False
        triton = updates.uses_triton(params[0].device)
        return not (self._decays if triton else isinstance(group["step"], Tensor))

    def _add_energies(self, energies: list[float]) -> None:
        before = self.prior_energies or [0.0] * len(energies)
        self.prior_energies = [a + b for a, b in zip(before, energies, strict=True)] if energies else before

    def fuse_prior(self, decays: Mapping[Tensor, float]) -> None:
        """From now on, gradients lack the term decay · θ of a Gaussian prior, and the update adds it.

        `prior_energies` then has ½ Σ decay θ² of each chain, at the weights of the last gradient. For `sample`, which
        owns the loop; not part of `state_dict()`.
        """
        self._decays = decays

    def make_capturable(self) -> None:
        """Keep lr and the step counter in tensors beside the parameters, so that each step is the same operations.

        It can then be captured in a CUDA graph and replayed: a schedule changes lr in place, and the step, of which the
        noise is a function, is counted on the device. Divergence is not looked for any more.
        """
        if self.needs_closure or not self.stackable:
            raise ValueError(
                f"{type(self).__name__} reads numbers in a step, so it can't be captured; lv.SGLD, lv.SGHMC, lv.SGNHT, "
                f"lv.ATMC and a frozen lv.pSGLD can."
            )
        for group in self.param_groups:
            if self.adapts and not group["frozen"]:
                raise ValueError(
                    f"{type(self).__name__} still adapts, by numbers that it counts; call sampler.freeze() before "
                    f"sampler.make_capturable()."
                )
            device = group["params"][0].device
            group["lr"] = torch.full((), float(group["lr"]), dtype=torch.float64, device=device)
            group["step"] = torch.full((), int(group["step"]), dtype=torch.int64, device=device)
        self.looks_for_divergence = False

    def _layout(self, index: int, group: Group, first: int) -> Layout:
        """The layout of a group, computed once and not shared with copies of the sampler."""
        known: dict[int, Layout] = self.__dict__.setdefault("_layouts", {})
        if index not in known or known[index].params is not group["params"] or known[index].first != first:
            known[index] = Layout(group, first)
        return known[index]

    _step_supports_amp_scaling = True  # so that a GradScaler sets `grad_scale`, which refuses it

    @property
    def grad_scale(self) -> Tensor:
        """Not supported."""
        raise AttributeError("grad_scale")

    @grad_scale.setter
    def grad_scale(self, scale: Tensor) -> None:
        raise ValueError(
            f"{type(self).__name__} can't be stepped by a GradScaler: it skips the steps whose gradients overflow, "
            f"drift and noise, so that the chain avoids steep places and no longer samples its target. Compute the "
            f"loss under torch.autocast(device, dtype=torch.bfloat16), which needs no scaling; call sampler.step()."
        )

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
        total = sum(norm.item() for norm in norms) if params[0].is_cpu else torch.stack(norms).sum().item()
        if not math.isfinite(total):
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


def store_metric(sampler: Sampler, metric: Sequence[Tensor]) -> None:
    """Keep the square roots of a diagonal metric A, one tensor per parameter; those of one chain are for all."""
    params = [p for group in sampler.param_groups for p in group["params"]]
    stacked = not isinstance(sampler.param_groups[0]["chain"], int)
    shapes, expected = [tuple(t.shape) for t in metric], [tuple(p.shape) for p in params]
    of_all = [shape[1:] for shape in expected] if stacked else expected
    if shapes not in (expected, of_all) or not all(bool((t > 0).all()) for t in metric):
        raise ValueError(
            f"metric needs one tensor of positive numbers per parameter, shapes {expected}; given {shapes}."
        )
    for p, t in zip(params, metric, strict=True):
        sampler.state[p]["metric"] = t.detach().to(p).expand(p.shape).clone()


def _check_counter(name: str, value: Any) -> None:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(v, int) and 0 <= v < LIMITS[name] for v in values):
        bits = {"seed": "2⁶⁴", "chain": "2³²"}[name]
        raise ValueError(f"{name} must be an integer from 0 to {bits} − 1; given {name}={value!r}.")

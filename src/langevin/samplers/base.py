"""What all samplers share: a `torch.optim.Optimizer` that knows N, T, a seed, a chain and its step."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin import noise
from langevin.posterior import Posterior, check_precision, checked_num_data

Group = dict[str, Any]
Normals = Callable[[], list[Tensor]]


class Sampler(Optimizer):
    """Base of every sampler: the skeleton of a step.

    A gradient g = ∇Û/N must be in `p.grad` (`Posterior.loss` leaves it there). Everything that a step depends on
    besides is in the parameter groups and in `state`, so `state_dict()` is the whole sampler: `lr`, `num_data`,
    `temperature`, `seed`, `chain` and the step counter are plain numbers there.

    The noise is a pure function of (seed, chain, step, position of the weight among all weights); see
    `langevin.noise`. If `chain` is a sequence of integers, every parameter carries a leading axis of that length, one
    slice a chain, and each slice gets the noise that it would get alone.
    """

    elementwise: ClassVar[bool] = True  # the update treats every weight by itself, so chains can be stacked
    constant_rate: ClassVar[bool] = False  # a schedule contradicts the method
    adapts: ClassVar[bool] = False  # until `freeze` is called, its target is biased
    injects_noise: ClassVar[bool] = True  # it has a temperature; without one, BatchNorm and dropout are tolerable
    citation: ClassVar[str]  # BibTeX

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
        """Add parameters, checked; missing settings come from the constructor."""
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
        for index, parameter in enumerate(group["params"]):
            check_precision(f"{len(self.param_groups) - 1}.{index}", parameter)
            if not isinstance(group["chain"], int) and parameter.shape[:1] != (len(group["chain"]),):
                raise ValueError(
                    f"With chain={group['chain']} every parameter needs a leading axis of length "
                    f"{len(group['chain'])}; parameter {index} has shape {tuple(parameter.shape)}."
                )

    def bind(self, posterior: Posterior, data: Any = None) -> None:
        """Tell a method that looks inside the model which model it moves; `sample` calls it once per copy."""

    def freeze(self) -> None:
        """Stop adapting, so that the target is exact from here on; `sample` calls it at the end of burn-in."""

    def finish(self) -> None:
        """Called when a step is complete."""

    @abstractmethod
    def update(self, group: Group, params: list[Tensor], grads: list[Tensor], normals: Normals) -> None:
        """One step of the method, in place, as its equation reads.

        `normals()` draws η for every parameter; a method at temperature 0 does not call it.
        """

    @abstractmethod
    def stability_limit(self, curvature: float) -> float:
        """The lr above which the update diverges on a quadratic loss (U/N) of that curvature."""

    @abstractmethod
    def gradient_heat(self, variance: float) -> float:
        """By how much mini-batch noise of that variance (of one coordinate of g) raises the temperature."""

    def observables(self) -> dict[str, list[Tensor]]:
        """What a person wants to see of the state, one tensor per parameter; nothing before the first step.

        Samplers with momentum show "kinetic", u²/s, whose mean over weights is T under the target (equipartition), and
        thermostats "thermostat", ξ.
        """
        return {}

    def _moving(self) -> list[tuple[Group, Tensor]]:
        """The parameters that have a momentum, each with its group."""
        return [
            (group, p) for group in self.param_groups for p in group["params"] if "momentum" in self.state.get(p, {})
        ]

    def zeros_at_first(self, name: str, params: list[Tensor]) -> list[Tensor]:
        """The state of that name of each parameter; zeros before the first step."""
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
        for group in self.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            grads = [_dense(p.grad) for p in with_gradient]
            if with_gradient:
                self.update(group, with_gradient, grads, partial(_draw, group, position))
                self._check_finite(group, with_gradient)
            group["step"] += 1
            position += sum(_weights(group, p) for p in group["params"])
        self.finish()
        return loss

    def _check_finite(self, group: Group, params: list[Tensor]) -> None:
        """Stop at the step that diverged: later, every weight is lost and nobody knows where it began.

        The norms cost about a fiftieth of the noise; on an accelerator they would wait for it, so only now and then.
        """
        if params[0].device.type != "cpu" and group["step"] % 100 != 0:
            return
        norms = torch._foreach_norm(params)
        if not math.isfinite(float(torch.stack([norm.cpu().double() for norm in norms]).sum())):
            first = next(i for i, p in enumerate(params) if not bool(p.isfinite().all()) or i == len(params) - 1)
            raise FloatingPointError(
                f"{type(self).__name__} diverged at step {group['step']}: parameter {self._name(params[first])} is no "
                f"longer finite. Lower lr (now {group['lr']:.3g}), or look for data or a loss that are not finite."
            )

    def _name(self, parameter: Tensor) -> str:
        """The group and the place in it, or the name if the constructor was given named parameters."""
        for index, group in enumerate(self.param_groups):
            for place, other in enumerate(group["params"]):
                if other is parameter:
                    name = f" ({group['param_names'][place]!r})" if "param_names" in group else ""
                    return f"{place} of group {index}{name}"
        return "?"


def _draw(group: Group, position: int) -> list[Tensor]:
    """η for the parameters of a group that have a gradient, the group's first weight being number `position`."""
    stacked = not isinstance(group["chain"], int)
    chains = group["chain"] if stacked else (group["chain"],)
    params = group["params"]
    alike = len({(p.dtype, p.device) for p in params}) == 1
    stretches = [params] if alike else [[p] for p in params]  # same numbers either way, fewer calls where they can be
    drawn: list[Tensor] = []
    for stretch in stretches:
        sizes = [_weights(group, p) for p in stretch]
        rows = [
            noise.normal(
                sum(sizes),
                seed=group["seed"],
                chain=chain,
                step=group["step"],
                start=position,
                dtype=stretch[0].dtype,
                device=stretch[0].device,
            )
            for chain in chains
        ]
        flat = torch.stack(rows) if stacked else rows[0]
        pieces = torch.split(flat, sizes, dim=-1)
        drawn += [piece.reshape(p.shape) for piece, p in zip(pieces, stretch, strict=True) if p.grad is not None]
        position += sum(sizes)
    return drawn


def _weights(group: Group, parameter: Tensor) -> int:
    """How many weights of one chain a parameter holds."""
    return parameter.numel() if isinstance(group["chain"], int) else parameter.numel() // len(group["chain"])


def _dense(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        raise ValueError("A sampler needs dense gradients (noise goes to every weight). Use Embedding(sparse=False).")
    return gradient


def _check_counter(name: str, value: Any) -> None:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(v, int) and 0 <= v < 2**64 for v in values):
        raise ValueError(f"{name} must be an integer from 0 to 2⁶⁴ − 1; given {name}={value!r}.")

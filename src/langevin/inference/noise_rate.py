"""A learning rate of its own for a sampled scale of the noise.

The loss has curvature 2 along log σ for every value of y, and of the order of 1/σ² along weights. At one rate for both,
log σ forgets about 1/(2σ²) times more slowly than a weight (50 times at σ = 0.1). So it gets the rate at which it is as
far from its stability limit as a weight of curvature 1/σ², σ the value that was given. A constant rate for a parameter
is a constant diagonal metric: the target is the same.

It gets it in the middle of burn-in. Before, residuals r are those of a network that is not trained: the gradient r²/σ²
would raise σ to r at once, where all curvatures are small and weights hardly move. For the same reason the rate is
limited to a move of about `_MOVE` at r = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from langevin.core.batches import Batches, batch_size_of
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.errors import RunError
from langevin.preconditioners.base import Identity
from langevin.samplers import Sampler

_MOVE = 5.0


class NoiseRate:
    """The parameter groups of the noise, whose rate is multiplied by their "factor" at a step."""

    def __init__(self, stepper: Optimizer, step: int) -> None:
        self._step = step
        self._groups = [(n, group) for n, group in enumerate(stepper.param_groups) if "factor" in group]
        self.follow(0, None)

    def follow(self, step: int, scheduler: Any) -> None:
        """Called after every step with the number of the next; a scheduler goes on from the new rate."""
        if step != self._step:
            return
        for number, group in self._groups:
            for name in ("lr", "initial_lr", "reference_lr", "max_speed"):
                if group.get(name) is not None:
                    group[name] *= group["factor"]
            if scheduler is not None:
                scheduler.base_lrs[number] *= group["factor"]

    def match(self, stepper: Optimizer, params: Sequence[Tensor], count: int) -> None:
        """Have as many groups as the checkpoint; one that was written with a metric has none for the noise."""
        if count == 1 and len(stepper.param_groups) == 1 + len(self._groups):
            stepper.param_groups[0]["params"] = list(params)
            del stepper.param_groups[1:]
            self._groups = []
        if count != len(stepper.param_groups):
            raise RunError("The sampler has other parameter groups than the one that wrote the checkpoint.")


def bind_sampler(
    stepper: Optimizer,
    objective: Objective,
    names: Sequence[str],
    params: Sequence[Tensor],
    batches: Batches,
    burn_in: int,
) -> NoiseRate:
    """Bind a sampler to posterior and data, and give the scale of the noise a group of its own."""
    if isinstance(stepper, Sampler) and isinstance(objective, Posterior):
        _separate_noise(stepper, objective, names, params, batches)
        stepper.bind(objective, batches)
    return NoiseRate(stepper, burn_in // 2)


def _separate_noise(
    stepper: Sampler, objective: Posterior, names: Sequence[str], params: Sequence[Tensor], batches: Batches
) -> None:
    """Move the scales of the noise to groups of their own, if the sampler has one rate for all."""
    likelihood: Any = objective.likelihood
    curvatures = likelihood.noise_curvatures() if hasattr(likelihood, "noise_curvatures") else {}
    where = {name: p for name, p in zip(names, params, strict=True) if name.removeprefix("likelihood.") in curvatures}
    if not where or not _has_one_rate(stepper):
        return
    values = _values_per_example(batches)
    (group,) = stepper.param_groups
    for name, parameter in where.items():
        own, weights = curvatures[name.removeprefix("likelihood.")]
        limit = stepper.stability_limit
        wanted = limit(own * values) / limit(weights)
        safe = limit(own * values * weights / _MOVE) / group["lr"]
        group["params"] = [p for p in group["params"] if p is not parameter]
        stepper.add_param_group({"params": [parameter], "factor": max(1.0, min(wanted, safe))})


def _has_one_rate(stepper: Sampler) -> bool:
    """Whether there is one rate for all parameters; preconditioners and full-batch samplers scale by themselves.

    A variance of the gradient that the user gives is compared with one rate, and a metric has its own scale for it.
    """
    plain = isinstance(getattr(stepper, "preconditioner", None), Identity | None)
    by_weight = {"gradient_variance", "metric"}
    given = stepper.defaults.get("gradient_variance") or any(by_weight & s.keys() for s in stepper.state.values())
    return plain and not given and stepper.injects_noise and not stepper.full_batch and len(stepper.param_groups) == 1


def _values_per_example(batches: Batches) -> int:
    _, y = batches.peek()
    target = y if isinstance(y, Tensor) else y[0]  # beside weights of examples
    return max(1, target.numel() // batch_size_of(y))

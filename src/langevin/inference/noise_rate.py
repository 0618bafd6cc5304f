"""A learning rate of its own for a sampled scale of the noise.

The loss has curvature 2 along log σ for every value of y, and of the order of 1/σ² along weights. At one rate for both,
log σ forgets about 1/(2σ²) times more slowly than a weight (50 times at σ = 0.1). So it gets the rate at which it is as
far from its stability limit as a weight of curvature 1/σ², σ the value that was given. A constant rate for a parameter
is a constant diagonal metric: the target is the same.

While residuals r are larger than σ, the gradient r²/σ² moves log σ up, far and at once if the rate is high; back it
goes by the rate in a step. So the rate is limited to a first move of about `_MOVE` at r = 1, where a network with
standardized targets starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from langevin.core.batches import Batches, batch_size_of
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior
from langevin.preconditioners.base import Identity
from langevin.samplers import Sampler

_MOVE = 5.0


def bind_sampler(
    stepper: Optimizer, objective: Objective, names: Sequence[str], params: Sequence[Tensor], batches: Batches
) -> None:
    """Bind a sampler to posterior and data, and give the scale of the noise a rate of its own."""
    if isinstance(stepper, Sampler) and isinstance(objective, Posterior):
        _give_noise_its_rate(stepper, objective, names, params, batches)
        stepper.bind(objective, batches)


def _give_noise_its_rate(
    stepper: Sampler, objective: Posterior, names: Sequence[str], params: Sequence[Tensor], batches: Batches
) -> None:
    """Move the scales of the noise to a parameter group of their own, if the sampler has one rate for all."""
    curvatures = getattr(objective.likelihood, "noise_curvatures", dict)()
    where = {name: p for name, p in zip(names, params, strict=True) if name.removeprefix("likelihood.") in curvatures}
    if not where or not _has_one_rate(stepper):
        return
    values = _values_per_example(batches)
    (group,) = stepper.param_groups
    for name, parameter in where.items():
        own, weights = curvatures[name.removeprefix("likelihood.")]
        limit = stepper.stability_limit
        wanted = group["lr"] * limit(own * values) / limit(weights)
        safe = limit(own * values * weights / _MOVE)
        lr = max(group["lr"], min(wanted, safe))
        group["params"] = [p for p in group["params"] if p is not parameter]
        speed = stepper.defaults.get("max_speed")
        limited = {"max_speed": speed * lr / group["lr"]} if isinstance(speed, int | float) else {}
        stepper.add_param_group({"params": [parameter], "lr": lr, **limited})


def relative_rates(stepper: Optimizer, params: Sequence[Tensor]) -> list[float]:
    """The lr of each parameter, relative to that of the first group."""
    first = float(stepper.param_groups[0]["lr"])
    rates = {id(p): float(group["lr"]) / first for group in stepper.param_groups for p in group["params"]}
    return [rates[id(p)] for p in params]


def _has_one_rate(stepper: Sampler) -> bool:
    """Whether there is one rate for all parameters; preconditioners and full-batch samplers scale by themselves.

    A variance of the gradient that the user gives is compared with one rate.
    """
    plain = isinstance(getattr(stepper, "preconditioner", None), Identity | None)
    plain = plain and not stepper.defaults.get("gradient_variance") and not stepper.state
    return plain and stepper.injects_noise and not stepper.full_batch and len(stepper.param_groups) == 1


def _values_per_example(batches: Batches) -> int:
    beginning = batches.position()
    _, y = batches.fetch(0, 0)
    batches.rewind(0, 0, beginning)
    target = y if isinstance(y, Tensor) else y[0]  # beside weights of examples
    return max(1, target.numel() // batch_size_of(y))

"""The gradient thermometer's readings: now and then, at the weights before a step,

    N² g₁·g₂      g₁, g₂ = ∇Û/N on two independent mini-batches, so unbiased for ‖∇U‖²; ‖∇U‖² itself if all data fit in
    zᵀ∇²Û z       random signs z, so unbiased for the trace (Hutchinson); by tensor, the part of it

and the same along the stiffest direction v, found by one step of power iteration per reading (several at the first).

Second derivatives are central differences of gradients, ((∇Û(θ+εz) − ∇Û(θ−εz))·z)/2ε. That takes no more time than a
second backward pass through the first, works for every model, and counts the kinks of ReLU networks, across which the
gradient jumps, while the second derivative between them does not know of the jump. ε has to be small against the scale
on which the likelihood bends, the noise of an example: with tr ∇²U ≈ ‖∇U‖²/T, moves along all directions together have
ε² tr ∇²U = κ min(d, N), so that outputs move by about √κ, a tenth, of the noise. (A hundredth of the weights, which it
is at most, was far too much for Student's t: its curvature was read as an eighth, and the temperature as 8.)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.batches import Batch, LoaderBatches, TensorBatches, batch_size_of, seeded, stack_batches
from langevin.core.devices import on_device
from langevin.core.full_batches import FullBatches
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior
from langevin.inference.chains import Chains
from langevin.samplers import Sampler

GRADIENTS = 5  # that a reading takes
_READINGS = 16  # of a chain, if they can be paid for
_DIFFERENCE = 0.01  # ε over the root mean square of the weights, at most
_SMALLEST = 1e-4  # at least: mini-batch noise makes ε too small, and then gradients are rounded
_KAPPA = 0.01  # the square of how far outputs move, over their noise
_FIRST_ITERATIONS = 4  # of the power iteration
AT_FIRST = 2 * _FIRST_ITERATIONS  # gradients that the first one takes besides
_OVERHEAD = 500_000  # of calling PyTorch, in weights × examples
_AT_ONCE = 10**7  # weights × examples of a forward pass; at least a micro-batch


def plan(fraction: float, *, steps: int, batch_size: int, num_data: int, weights: int | None) -> tuple[int, int]:
    """Steps between readings and examples of a reading, that together cost this fraction of a run of so many steps.

    The noise of a reading falls as 1/size, that of a mean of readings as 1/√number, so readings are large and few:
    sixteen of a chain, unless they would be larger than the data or smaller than the run's own mini-batches. `weights`
    are those of all chains that are computed together: the gradient of a small model takes as long for many examples.
    Without them the cost is counted in examples.

    >>> plan(0.02, steps=16_000, batch_size=50, num_data=1000, weights=None)
    (1000, 200)
    >>> plan(0.02, steps=16_000, batch_size=50, num_data=1000, weights=100)
    (298, 1000)
    """
    overhead = 0.0 if weights is None else _OVERHEAD / weights
    affordable = fraction * steps * (batch_size + overhead) / (GRADIENTS * _READINGS) - overhead
    size = min(max(int(affordable), batch_size), num_data)
    return math.ceil(GRADIENTS * (size + overhead) / (fraction * (batch_size + overhead))), size


def can_probe(objective: Any, sampler: Any, batches: Any) -> bool:
    """Whether there is a temperature, a loss that is a function of the weights, and data that can be drawn again."""
    return (
        isinstance(objective, Posterior)
        and isinstance(sampler, Sampler)
        and sampler.injects_noise
        and all(group.get("temperature", 0.0) > 0 for group in sampler.param_groups)
        and not isinstance(batches, LoaderBatches)
        and not objective.stochastic_forward
        and not objective.incompatible_layers()
    )


@torch.no_grad()
def read_gradients(group: Chains, size: int) -> dict[str, Tensor]:
    """Readings of every chain: "gradient/NAME" and "curvature/NAME" of each tensor, and along the "stiffest" direction.

    To be called before `group.backward()`. Weights, gradients and the sampler's state are left as they are.
    """
    num_data = group.objective.num_data
    theta = [p.detach() for p in group.params]
    second = fetch_probe(group, size, 1)
    whole = size >= (group.batches.num_data or math.inf)
    g1 = gradients_at(group, theta, second if whole else fetch_probe(group, size, 0))
    scale = _difference_length(group, theta, g1)

    def difference(direction: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """∇²Û v/N, and ∇Û/N, on the second batch."""
        steps = [v * _of_chains(scale, v, group) for v in direction]
        plus = gradients_at(group, [t + d for t, d in zip(theta, steps, strict=True)], second)
        minus = gradients_at(group, [t - d for t, d in zip(theta, steps, strict=True)], second)
        change = [(a - b) / (2 * _of_chains(scale, a, group)) for a, b in zip(plus, minus, strict=True)]
        return change, [(a + b) / 2 for a, b in zip(plus, minus, strict=True)]

    signs = _signs(group)
    image, g2 = difference(signs)
    if whole:
        g2 = g1
    found: dict[str, Tensor] = {}
    for name, a, b, z, hz in zip(group.names, g1, g2, signs, image, strict=True):
        found[f"gradient/{name}"] = num_data**2 * _dot([a], [b], group)
        found[f"curvature/{name}"] = num_data * _dot([z], [hz], group)

    stiffest = group.thermometer.stiffest
    for _ in range(0 if stiffest else _FIRST_ITERATIONS):
        stiffest = _unit(difference(_unit(stiffest or signs, group))[0], group)
    image, _ = difference(stiffest)
    along = num_data**2 * _dot(g1, stiffest, group) * _dot(g2, stiffest, group)
    found["gradient along the stiffest direction"] = along
    found["curvature along the stiffest direction"] = num_data * _dot(stiffest, image, group)
    group.thermometer.stiffest = _unit(image, group)
    if isinstance(group.stepper, Sampler):
        group.stepper.finish()  # what a preconditioner recorded of these passes is not of the run
    return found


def _difference_length(group: Chains, theta: list[Tensor], gradient: list[Tensor]) -> Tensor:
    """ε of every chain."""
    weights = _norm(theta, group) / math.sqrt(_count(group))
    weights = torch.where(weights > 0, weights, 1.0)
    assert isinstance(group.stepper, Sampler)
    moved = _KAPPA * min(_count(group), group.objective.num_data) * group.stepper.param_groups[0]["temperature"]
    length = math.sqrt(moved) / (group.objective.num_data * _norm(gradient, group))
    return length.clamp(_SMALLEST * weights, _DIFFERENCE * weights)


def gradients_at(group: Chains, values: list[Tensor], batch: Batch) -> list[Tensor]:
    """∇Û/N of every chain on a batch, at these weights instead of its own."""
    total = [torch.zeros_like(v) for v in values]
    axis = 1 if group.one_batch_each else 0
    size = batch_size_of(tree_map(lambda t: t[0], batch[1]) if group.one_batch_each else batch[1])
    micro_batch = getattr(group.batches, "batch_size", 1) // group.grad_accumulation_steps
    rows = max(_AT_ONCE // (_count(group) * len(group.numbers)), micro_batch, 1)
    for first in range(0, size, rows):
        count = min(rows, size - first)
        x, y = tree_map(lambda t, a=first, n=count: t.narrow(axis, a, n), batch)
        grads = _of_stacked(group, values, x, y) if group.stacked else _of_one(group, values, x, y)
        for sums, grad in zip(total, grads, strict=True):
            if grad is not None:
                sums.add_(grad, alpha=count / size)
    return total


def _of_stacked(group: Chains, values: list[Tensor], x: Any, y: Any) -> tuple[Tensor | None, ...]:
    leaves = [v.requires_grad_() for v in values]
    names = internal_names(group.objective)
    with torch.enable_grad():
        weights = {names[name]: leaf for name, leaf in zip(group.names, leaves, strict=True)}
        weights |= group.prior_scales.inputs()
        axis = 0 if group.one_batch_each else None
        losses = vmap(lambda w, a, b: functional_call(group.objective, w, (a, b)), in_dims=(0, axis, axis))(
            weights, x, y
        )
        return torch.autograd.grad(losses.sum(), leaves, allow_unused=True)


def _of_one(group: Chains, values: list[Tensor], x: Any, y: Any) -> tuple[Tensor | None, ...]:
    own = [p.data for p in group.params]
    try:
        for p, value in zip(group.params, values, strict=True):
            p.data = value
        with torch.enable_grad():
            return torch.autograd.grad(group.objective.loss(x, y), group.params, allow_unused=True)
    finally:
        for p, value in zip(group.params, own, strict=True):
            p.data = value


def fetch_probe(group: Chains, size: int, which: int) -> Batch:
    """One of two mini-batches that are independent of each other and of the run's own."""
    assert group.batches.num_data is not None
    if isinstance(group.batches, FullBatches):
        return group.batches.fetch(group.numbers[0], group.step)
    where: Any = {"seed": group.seed, "step": 2 * group.step + which, "stream": random.Stream.PROBE}
    device = group.batches.device if isinstance(group.batches, TensorBatches) else "cpu"
    indices = random.random_subset(group.batches.num_data, size, chain=group.numbers, **where, device=device)
    if isinstance(group.batches, TensorBatches):
        batch = group.batches.take(indices if group.stacked else indices[0])
    else:
        batches = []
        for chain, chosen in zip(group.numbers, indices, strict=True):
            with seeded(group.seed, chain, group.step, part=(1 << 16) + which):  # for random transforms
                batches.append(group.batches.take(chosen))
        batch = stack_batches(batches) if group.stacked else batches[0]
    x, y = on_device(batch, group.params[0].device)
    return x, y


def _signs(group: Chains) -> list[Tensor]:
    """z of every chain: random signs, a function of (seed, chain, step, position)."""
    rows = torch.empty(len(group.numbers), _count(group), device=group.params[0].device)
    where: Any = {"seed": group.seed, "chains": group.numbers, "step": group.step, "stream": random.Stream.SIGNS}
    flat = torch.where(random.normal_rows(rows, **where) < 0, -1.0, 1.0)
    sizes = [p.numel() // len(group.numbers) for p in group.params]
    return [part.reshape(p.shape).to(p) for part, p in zip(torch.split(flat, sizes, dim=1), group.params, strict=True)]


def _count(group: Chains) -> int:
    """The weights of one chain."""
    return sum(p.numel() for p in group.params) // len(group.numbers)


def _dot(a: list[Tensor], b: list[Tensor], group: Chains) -> Tensor:
    """Σ a b of every chain."""
    rows = [(u * v).reshape(len(group.numbers), -1).sum(1).double() for u, v in zip(a, b, strict=True)]
    return torch.stack(rows).sum(0)


def _norm(a: list[Tensor], group: Chains) -> Tensor:
    return _dot(a, a, group).sqrt()


def _unit(a: list[Tensor], group: Chains) -> list[Tensor]:
    """Vectors of length one; 0 stays 0."""
    norm = _norm(a, group).clamp_min(torch.finfo(torch.float32).tiny)
    return [v / _of_chains(norm, v, group) for v in a]


def _of_chains(numbers: Tensor, like: Tensor, group: Chains) -> Tensor:
    """One number per chain, to be multiplied with a parameter."""
    return numbers.to(like).reshape(-1, *[1] * (like.dim() - 1)) if group.stacked else numbers.to(like).squeeze(0)

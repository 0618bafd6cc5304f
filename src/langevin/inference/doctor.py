"""Checks of a set-up before it is sampled: what goes wrong most often.

`langevin doctor module:factory` calls the factory, which returns a posterior and data, or a dict with "posterior",
"data" and, if wanted, "sampler" (`partial(lv.SGLD, lr=…)`), "loss" (your own loss of x and y, if you do not use
`posterior.loss`) and "batch_size".
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.batches import Batches, as_batches
from langevin.core.parameters import public_name
from langevin.core.posterior import Posterior
from langevin.diagnostics.curvature import largest_curvature
from langevin.ensembles.prediction import ClassPrediction
from langevin.inference.checks import check_targets, preserve_rng_state
from langevin.inference.find_lr import find_lr
from langevin.inference.prior_predictive import prior_predictive
from langevin.inference.steppers import SamplerLike, sampler_factory
from langevin.samplers import Sampler

Loss = Callable[[Any, Any], Tensor]


class Finding(NamedTuple):
    """What one check found."""

    level: Literal["ok", "note", "warning", "error"]
    check: str
    message: str


def examine(
    posterior: Posterior,
    data: Any,
    *,
    sampler: SamplerLike | None = None,
    loss: Loss | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    search: bool = True,
) -> list[Finding]:
    """All findings about a posterior, its data and, if they are given, a sampler and the user's own loss.

    The model is left as it is. With `search` the learning rate is compared with what `find_lr` finds, which takes some
    thousand steps; without, only with the stability limit at the present weights.
    """
    posterior = copy.deepcopy(posterior)
    device = next(posterior.parameters()).device
    findings: list[Finding] = []
    with preserve_rng_state():
        batches = as_batches(data, batch_size, seed, device)
        probe = None
        if sampler is not None:
            params = list(posterior.trainable_parameters().values())
            probe = sampler_factory(sampler)(params, num_data=posterior.num_data, seed=seed, chain=0)
        findings += _number_of_data(posterior, batches)
        findings += _parameters(posterior)
        findings += _layers(posterior, probe)
        x, y = tree_map(lambda t: t.to(device), batches.fetch(0, 0))
        broken = list(_targets(posterior, batches, x, y))
        findings += broken
        if not any(finding.level == "error" for finding in broken):
            findings += _randomness(posterior, probe, x, y)
            findings += _reduction(posterior, loss, x, y)
            findings += _prior(posterior, x, y)
            if probe is not None and sampler is not None:
                findings += _learning_rate(posterior, probe, x, y)
                sampled = probe.injects_noise and probe.param_groups[0]["temperature"] > 0
                if not sampled:
                    findings += _gradient_noise(posterior, probe, batches, device)
                elif search and not probe.full_batch and not any(finding.level == "error" for finding in findings):
                    findings += _temperature(posterior, data, sampler, probe, batch_size, seed)
    return findings


def _number_of_data(posterior: Posterior, batches: Batches) -> Iterator[Finding]:
    check = "number of data"
    if batches.num_data is None:
        yield Finding("note", check, f"The data set has no length; num_data={posterior.num_data} is taken on trust.")
    elif batches.num_data != posterior.num_data:
        ratio = batches.num_data / posterior.num_data
        yield Finding(
            "error",
            check,
            f"num_data={posterior.num_data}, but the data set has {batches.num_data} examples: samples would be at a "
            f"temperature of {ratio:.3g} instead of 1. Write num_data={batches.num_data}.",
        )
    else:
        yield Finding("ok", check, f"num_data={posterior.num_data} is the length of the data set.")


def _parameters(posterior: Posterior) -> Iterator[Finding]:
    sampled = posterior.trainable_parameters()
    count = sum(p.numel() for p in sampled.values())
    frozen = {public_name(name): t for name, t in posterior.named_parameters() if not t.requires_grad}
    if frozen:
        yield Finding(
            "note",
            "frozen parameters",
            f"{sum(p.numel() for p in frozen.values())} weights are frozen ({', '.join(list(frozen)[:3])}…); the "
            f"posterior is that of the other {count}.",
        )
    else:
        yield Finding("ok", "frozen parameters", f"None; all {count} weights are sampled.")


def _layers(posterior: Posterior, sampler: Sampler | None) -> Iterator[Finding]:
    check = "layers"
    incompatible_layers = posterior.incompatible_layers()
    for layer in incompatible_layers:
        if layer.kind in posterior.allow:
            verdict = "allowed, but there is no fixed posterior to sample"
        elif sampler is not None and not sampler.injects_noise:
            verdict = "acceptable for a baseline"
        else:
            verdict = "samplers refuse it"
        yield Finding(
            "error" if verdict == "samplers refuse it" else "warning",
            check,
            f"{layer.kind} in {layer.name!r}: {verdict}; use {layer.alternative} instead.",
        )
    if not incompatible_layers:
        yield Finding("ok", check, "Neither BatchNorm nor dropout.")


def _targets(posterior: Posterior, batches: Batches, x: Any, y: Any) -> Iterator[Finding]:
    check = "targets"
    try:
        with torch.no_grad():
            check_targets(posterior, batches, x, y)
            value = float(posterior.loss(x, y))
    except (ValueError, RuntimeError, TypeError) as error:
        yield Finding("error", check, f"The loss of a batch can't be computed: {error}")
        return
    if math.isfinite(value):
        yield Finding("ok", check, f"They fit the model and the likelihood; the loss is {value:.4g}.")
    else:
        yield Finding("error", check, f"The loss is {value} at the model's present weights.")


@torch.no_grad()
def _randomness(posterior: Posterior, sampler: Sampler | None, x: Any, y: Any) -> Iterator[Finding]:
    check = "repeatability"
    random.seed_generators(0)
    first = float(posterior.loss(x, y))
    random.seed_generators(1)
    if first == float(posterior.loss(x, y)):
        yield Finding("ok", check, "Two passes over one batch agree.")
    else:
        tolerable = "dropout" in posterior.allow or (sampler is not None and not sampler.injects_noise)
        yield Finding(
            "warning" if tolerable else "error",
            check,
            "Two passes over one batch differ: the model is stochastic, so there is no fixed posterior to sample.",
        )


@torch.no_grad()
def _reduction(posterior: Posterior, loss: Loss | None, x: Any, y: Any) -> Iterator[Finding]:
    """Double the batch: a mean stays, a sum doubles."""
    check = "mean or sum"
    prior = 0.0 if loss else float(posterior.log_prior()) / posterior.num_data
    measure = loss or posterior.loss
    once = float(measure(x, y)) + prior
    twice = float(measure(*tree_map(lambda t: torch.cat([t, t]), (x, y)))) + prior
    ratio = twice / once if once else 1.0
    if abs(ratio - 1) < 0.02:
        yield Finding("ok", check, "The loss of a doubled batch is the same: a mean over examples, as it must be.")
    elif abs(ratio - 2) < 0.05:
        yield Finding(
            "error",
            check,
            "The loss of a doubled batch is twice as large: it sums over the batch. Average instead "
            '(reduction="mean"), or the step and the temperature depend on the batch size.',
        )
    else:
        yield Finding("warning", check, f"Doubling the batch multiplies the loss by {ratio:.3g}; a mean would stay.")


def _prior(posterior: Posterior, x: Any, y: Any) -> Iterator[Finding]:
    """What networks drawn from the prior predict: neither certain classes nor values far beyond the targets."""
    check = "prior predictive"
    try:
        found = prior_predictive(posterior, x, samples=20)
    except (ValueError, RuntimeError) as error:
        yield Finding("note", check, f"Not known: {error}")
        return
    assert found.samples is not None
    if isinstance(found, ClassPrediction):
        sure = float((found.samples.amax(2) > 0.99).double().mean())
        message = f"Networks drawn from the prior give {sure:.0%} of the inputs a class with more than 99% probability."
        level: Literal["ok", "warning"] = "warning" if sure > 0.5 else "ok"
    else:
        target = y[0] if isinstance(y, tuple | list) else y
        ratio = float(found.samples.double().std() / target.double().std().clamp_min(1e-30))
        message = f"Values predicted by networks drawn from the prior vary {ratio:.2g} times as much as the targets."
        level = "warning" if not ratio < 30 else "ok"
    advice = " A narrower prior, such as lv.priors.fan_in(model), does not saturate the network; standardize the data."
    yield Finding(level, check, message + ("" if level == "ok" else advice))


def _learning_rate(posterior: Posterior, sampler: Sampler, x: Any, y: Any) -> Iterator[Finding]:
    check = "learning rate"
    curvature = largest_curvature(posterior, x, y)
    lr = float(sampler.param_groups[0]["lr"])
    if not curvature > 0:
        yield Finding("warning", check, f"The curvature can't be estimated at the present weights ({curvature}).")
        return
    limit = sampler.stability_limit(curvature)
    level: Literal["ok", "warning", "error"] = "error" if lr >= limit else "warning" if lr > limit / 2 else "ok"
    yield Finding(
        level,
        check,
        f"lr={lr:.3g}; at the present weights the largest curvature is {curvature:.3g} and {type(sampler).__name__} is "
        f"stable below {limit:.3g}." + ("" if level == "ok" else f" Try lr={limit / 10:.1g}."),
    )


def _temperature(
    posterior: Posterior, data: Any, sampler: SamplerLike, probe: Sampler, batch_size: int | None, seed: int
) -> Iterator[Finding]:
    """How hot the run would be, by what `find_lr` measures."""
    check, lr = "temperature", float(probe.param_groups[0]["lr"])
    try:
        found = find_lr(posterior, data, sampler, batch_size=batch_size, seed=seed, progress=False)
    except (ValueError, TypeError) as error:  # TypeError: a function of the user's that does not take lr
        yield Finding("warning", check, f"It can't be predicted: {error}")
        return
    mean, stiffest = found.expected(lr)
    level: Literal["ok", "warning"] = "ok" if lr <= found.lr else "warning"
    yield Finding(
        level,
        check,
        f"At lr={lr:.3g} it would be about {mean:.3g}, and {stiffest:.3g} along the stiffest direction; the target is "
        f"{found.target_temperature:g}." + ("" if level == "ok" else f" Try lr={found.lr:.2g}, which find_lr finds."),
    )


def _gradient_noise(
    posterior: Posterior, sampler: Sampler, batches: Batches, device: torch.device
) -> Iterator[Finding]:
    """The gradient-noise temperature of a sampler that has no other, from the variance of a few gradients."""
    gradients = []
    for step in range(8):
        x, y = tree_map(lambda t: t.to(device), batches.fetch(0, step))
        grads = torch.autograd.grad(posterior.loss(x, y), list(posterior.trainable_parameters().values()))
        gradients.append(torch.cat([g.flatten() for g in grads]))
    added = sampler.gradient_noise_temperature(float(torch.stack(gradients).var(0).mean()))
    check = "gradient noise"
    if math.isnan(added):
        yield Finding("note", check, f"Its temperature depends on what {type(sampler).__name__} will have learnt.")
    else:
        yield Finding("note", check, f"It is the only noise; the gradient-noise temperature is about {added:.2g}.")

"""`lv.fit(posterior, data, lv.Laplace())`: the curvature at a mode; no steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from langevin.approximations.evidence import best_factor, log_marginal_likelihood
from langevin.approximations.laplace import Laplace
from langevin.core.batches import Batches, as_batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian, Prior
from langevin.ensembles.fit import Fit
from langevin.ensembles.predictor import Predictor
from langevin.inference import checks
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.resume import finished_fit
from langevin.inference.settings import RunSettings
from langevin.inference.steppers import OptimizerFactory
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore

_TURNS = 30  # of mode and prior scale, at most
FindMode = Callable[[Posterior, Any], Mapping[str, Tensor]]


def fit_laplace(
    posterior: Posterior,
    data: Any,
    approximation: Laplace,
    start: Mapping[str, Tensor] | None,
    find_mode: FindMode,
    batch_size: int,
    *,
    seed: int,
    out: str | Path | None,
    tags: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> Fit:
    """A Laplace approximation at the mode that is given, or that is found."""
    batches = as_batches(data, None, seed, device_of(posterior))
    checks.check_data(posterior, batches, seed)
    if approximation.layers == "all":
        approximation.check(posterior, 0)
    load_tensors(posterior, find_mode(posterior, data) if start is None else start)
    if approximation.layers == "last":
        posterior = _with_last_alone(posterior)
        approximation.check(posterior, 0)
    posterior, factor = _with_best_prior(posterior, data, approximation, batches, batch_size, start is None, find_mode)
    tensors = approximation.tensors(posterior, batches, batch_size)
    energy = _energy(posterior, batches)
    statistics = {
        "loss": energy / posterior.num_data,
        "prior_scale": factor,
        "log_marginal_likelihood": log_marginal_likelihood(posterior, tensors, approximation, energy),
    }
    settings = RunSettings(1, 0, 1, 0, 1, seed, None, "sequential", False, 1, None, measure_temperature=False)
    engine = Engine(posterior, batches, OptimizerFactory(torch.optim.SGD), None, settings)
    with checks.preserve_rng_state():
        manifest = make_manifest(engine, posterior, inputs=inputs_of(batches), tags=tags, tensors=tensors) | dict(about)
    manifest["weights"] = list(posterior.trainable_parameters())
    store: SampleStore = MemoryStore(manifest) if out is None else DirectoryStore.create(out, manifest)
    with store.writing():
        store.write_fixed(posterior.fixed_tensors())
        store.add(0, 1, tensors, statistics)
        store.flush()
        store.write_manifest()
    return finished_fit(store, Predictor(posterior.model, posterior.likelihood), posterior, data)


def _with_last_alone(posterior: Posterior) -> Posterior:
    """Leave the last linear layer to be approximated."""
    layers = [m for m in posterior.model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    if not layers:
        raise ValueError('The model has no nn.Linear whose weights are sampled; write lv.Laplace(layers="all").')
    last = {id(p) for p in layers[-1].parameters()}
    priors = posterior.priors()
    for parameter in posterior.trainable_parameters().values():
        parameter.requires_grad_(id(parameter) in last)
    return _rebuilt(posterior, {name: priors[name] for name in posterior.trainable_parameters()})


def _with_best_prior(
    posterior: Posterior,
    data: Any,
    approximation: Laplace,
    batches: Batches,
    batch_size: int,
    moves: bool,
    find_mode: FindMode,
) -> tuple[Posterior, float]:
    """The posterior at its mode under the prior scale of the largest marginal likelihood, and that factor."""
    total = 1.0
    if approximation.prior_scale == "given":
        return posterior, total
    for _ in range(_TURNS):
        factor = best_factor(approximation, posterior, approximation.tensors(posterior, batches, batch_size))
        total *= factor
        posterior = _rescaled(posterior, factor)
        if not moves or abs(math.log(factor)) < 1e-3:
            return posterior, total
        load_tensors(posterior, find_mode(posterior, data))
    warnings.warn(
        f"The prior scale of the largest marginal likelihood was not found in {_TURNS} turns: its factor is "
        f"{total:.3g} and still changes by {factor:.3g} in a turn.",
        stacklevel=4,
    )
    return posterior, total


def _rescaled(posterior: Posterior, factor: float) -> Posterior:
    """A posterior over the same parameters, with the standard deviations of its Gaussian priors multiplied."""
    own = {name: prior for name, prior in posterior.priors().items() if isinstance(prior, Gaussian)}
    return _rebuilt(posterior, {name: Gaussian(prior.std * factor) for name, prior in own.items()})


def _rebuilt(posterior: Posterior, priors: dict[str, Prior]) -> Posterior:
    """A posterior over the same parameters, with other priors."""
    with warnings.catch_warnings():  # of layers that the first one was warned of
        warnings.simplefilter("ignore")
        other = Posterior(
            posterior.model,
            posterior.likelihood,
            priors,
            num_data=posterior.num_data,
            weight=posterior.weight,
            allow=posterior.allow,
        )
    other.output = posterior.output
    return other


def _energy(posterior: Posterior, batches: Batches) -> float:
    """U, over all data."""
    with torch.no_grad():
        device = device_of(posterior)
        pieces = (tree_map(lambda t: t.to(device), batch) for batch in batches.full_pass(4096))
        return sum(float(posterior.loss(x, y).double()) * batch_size_of(y) for x, y in pieces)

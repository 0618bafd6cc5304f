"""What can be known to be wrong before the first step."""

from __future__ import annotations

import copy
import math
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_map

from langevin.core.batches import Batches, call, seed_everything
from langevin.core.likelihoods import BUILT_IN
from langevin.core.parameters import public_name
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.core.sharding import is_sharded
from langevin.ensembles.export import describe_inputs
from langevin.errors import DivergenceError, RunError
from langevin.inference.distributed import Place
from langevin.inference.serialize import write_recipe
from langevin.inference.settings import RunSettings
from langevin.samplers import Sampler
from langevin.storage.directory import DirectoryStore


def check(
    posterior: Posterior,
    batches: Batches,
    sampler: Callable[..., Sampler],
    schedule: Callable[[Any], LRScheduler] | None,
    seed: int,
) -> None:
    """Raise for whatever would make the run fail or its samples wrong."""
    if isinstance(sampler, torch.optim.Optimizer) or not callable(sampler):
        raise ValueError("Give the sampler's class with its options, not an object: partial(lv.SGLD, lr=1e-2).")
    probe = sampler(list(posterior.trainable_parameters().values()), num_data=posterior.num_data, seed=0, chain=0)
    if not isinstance(probe, Sampler):
        raise ValueError(f"{type(probe).__name__} is no sampler of langevin; write partial(lv.SGLD, lr=1e-2).")
    if schedule is not None and probe.constant_rate:
        raise ValueError(f"{type(probe).__name__} has a constant rate by definition; leave out the schedule.")
    check_num_data(posterior, batches)
    if not batches.exact_resume:
        warnings.warn(
            "This DataLoader orders its data in a way that can't be repeated (an iterable data set or a sampler of its "
            "own): a resumed run will go on with other batches than an undisturbed one. Pass the data set instead.",
            stacklevel=3,
        )
    if probe.injects_noise:
        refuse_incompatible_layers(posterior)
    with preserve_rng_state():
        _check_loss(copy.deepcopy(posterior), batches, seed)


def refuse_shards(posterior: Posterior) -> None:
    """Raise for a model that was distributed over processes."""
    if any(is_sharded(p) for p in posterior.parameters()):
        raise ValueError(
            "Parameters that fully_shard has distributed are moved in a loop of your own (docs/scaling.md): sample(…) "
            "works with whole replicas of the model, mesh='data=2'."
        )


def check_num_data(posterior: Posterior, batches: Batches) -> None:
    """Raise if the posterior's N is not the length of the data."""
    if batches.num_data is not None and batches.num_data != posterior.num_data:
        raise ValueError(
            f"The posterior was told num_data={posterior.num_data}, but the data set has {batches.num_data} examples: "
            f"the temperature would be wrong by that ratio. Write Posterior(…, num_data={batches.num_data})."
        )


def check_schedule(schedule: Callable[[Any], LRScheduler] | None, probe: Sampler, plan: RunSettings) -> None:
    """Raise for a schedule that needs more than the step, or ends before the plan does."""
    if schedule is None:
        return
    scheduler = schedule(probe)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("ReduceLROnPlateau needs a validation loss; use a schedule of the step alone.")
    total = getattr(scheduler, "total_steps", None)
    if isinstance(total, int) and total < plan.steps:
        raise ValueError(
            f"{type(scheduler).__name__} ends after {total} steps, the run after {plan.steps}; "
            f"write total_steps={plan.steps}."
        )


def check_adaptation(probe: Sampler, plan: RunSettings) -> None:
    """Raise if an adaptive sampler is to be frozen before it has learnt anything."""
    if probe.adapts and plan.freeze and plan.burn_in == 0:
        raise ValueError(
            f"{type(probe).__name__} learns its metric during burn-in and is frozen at its end, so that its target is "
            f"exact; with burn_in=0 there is nothing to learn from. Write burn_in=1000, or, at the price of a biased "
            f"target, freeze=False."
        )


def check_mesh(posterior: Posterior, probe: Sampler, place: Place, out: Any) -> None:
    """Raise for what several processes can't do together."""
    if place.alone:
        return
    if out is None:
        raise ValueError('Several processes write one run, so it needs a directory that all of them see: out="runs/…".')
    if place.mesh.data == 1:
        return
    what = None
    if not probe.elementwise:
        what = f"{type(probe).__name__} learns from whole mini-batches, of which each process sees a part"
    elif posterior.incompatible_layers() or posterior.allow:
        what = "BatchNorm and dropout depend on how a mini-batch is divided"
    if what is not None:
        raise ValueError(f"{what}: give it processes along chains only, mesh='chains={place.mesh.size},data=1'.")


@torch.no_grad()
def _check_loss(posterior: Posterior, batches: Batches, seed: int) -> None:
    seed_everything(seed, 0, 0)
    device = next(posterior.parameters()).device
    beginning = batches.position()
    x, y = tree_map(lambda t: t.to(device), batches.fetch(0, 0))
    batches.rewind(0, 0, beginning)
    before = {name: buffer.clone() for name, buffer in posterior.named_buffers()}
    check_targets(posterior, batches, x, y)
    torch.manual_seed(0)
    loss = float(posterior.loss(x, y))
    torch.manual_seed(1)
    again = float(posterior.loss(x, y))
    if not math.isfinite(loss):
        raise DivergenceError(f"The loss is {loss} before the first step; look at the data and at the model's weights.")
    moved = {public_name(name) for name, buffer in posterior.named_buffers() if not torch.equal(buffer, before[name])}
    if unknown := sorted(moved - set(posterior.running_statistics())):
        raise ValueError(
            f"The buffers {unknown} change with every pass through the model, so a sample of the weights is not all of "
            f"its state. Take the layer that moves them out (spectral normalization?) or put it in evaluation mode."
        )
    known = posterior.incompatible_layers() or posterior.allow
    if loss != again and not known:
        raise ValueError(
            "The model's output is random (two passes over one batch differ), so it has no posterior. Take the "
            'randomness out, or allow it: Posterior(…, allow=["dropout"]).'
        )


def check_targets(posterior: Posterior, batches: Batches, x: Any, y: Any) -> None:
    """Raise for targets that the likelihood can't have: all of them if they are at hand, else those of this batch."""
    validate = getattr(posterior.likelihood, "validate", None)
    if validate is not None:
        targets = batches.targets()
        validate(call(posterior.model, x), y if targets is None else targets)


def check_same(store: DirectoryStore, posterior: Posterior, batches: Batches) -> None:
    """Refuse to continue a run with another model, N or data."""
    tensors = posterior.trainable_parameters() | posterior.running_statistics()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    saved = {name: spec["shape"] for name, spec in store.manifest["tensors"].items()}
    if different := [name for name in {**shapes, **saved} if shapes.get(name) != saved.get(name)]:
        raise RunError(f"The model is not the one of {store.path}; these tensors differ: {different[:5]}.")
    if posterior.num_data != store.manifest["num_data"]:
        raise RunError(
            f"{store.path} was sampled with num_data={store.manifest['num_data']}; given {posterior.num_data}."
        )
    for name, value in describe(posterior).items():
        if store.manifest[name] != value:
            raise RunError(f"{store.path} was sampled with {name} {store.manifest[name]}; given {value}.")
    if batches.fingerprint() != store.manifest["data"]:
        raise RunError(f"The data are not those of {store.path}: {batches.fingerprint()} ≠ {store.manifest['data']}.")


def check_same_sampler(store: DirectoryStore, sampler: Any, schedule: Any) -> None:
    """Refuse to continue a run with another sampler or schedule; one that can't be written down is taken on trust."""
    for name, given in (("sampler", sampler), ("schedule", schedule)):
        saved = store.manifest[name]
        if given is not None and saved is not None and write_recipe(given) != saved:
            raise RunError(
                f"A run keeps its {name}: {store.path} has {saved or 'none'}, given {write_recipe(given) or given}. "
                f"Leave out {name}=…, or begin a new run from this one: lv.sample(…, init=lv.load(…))."
            )


def inputs(batches: Batches) -> Any:
    """What an input looks like, as it stands in a manifest."""
    beginning = batches.position()
    with preserve_rng_state():
        x, _ = batches.fetch(0, 0)
    batches.rewind(0, 0, beginning)
    return describe_inputs(x)


def describe(posterior: Posterior) -> dict[str, Any]:
    """What tells this posterior from others with the same model, as it stands in a manifest."""
    likelihood = posterior.likelihood
    own = type(likelihood).__name__ if type(likelihood) in BUILT_IN.values() else None
    return {
        "prior": repr(posterior.prior),
        "weight": posterior.weight,
        "likelihood": {"name": own, "options": likelihood.config() if own else {}},  # type: ignore[attr-defined]
    }


def warn_of_differences(before: dict[str, Any], now: dict[str, Any], batches: Batches) -> None:
    """Say what keeps a resumed run from repeating an undisturbed one bit for bit."""
    different = [f"{name} {before.get(name)} → {value}" for name, value in now.items() if before.get(name) != value]
    if different:
        warnings.warn(
            f"The environment has changed ({', '.join(different)}): the samples to come will agree with those of an "
            f"undisturbed run in distribution, but not bit for bit.",
            stacklevel=3,
        )
    if not batches.exact_resume:
        warnings.warn("The DataLoader's order can't be repeated: the run goes on with other batches.", stacklevel=3)


def size_on_disk(store: DirectoryStore, plan: RunSettings) -> float:
    """The bytes that all samples will take."""
    return store.bytes_per_sample() * plan.chains * min(plan.kept_per_chain(), store.manifest["keep_last"] or math.inf)


def refuse_if_too_large(store: DirectoryStore, plan: RunSettings) -> None:
    """Raise if the samples do not fit the disk."""
    needed, free = size_on_disk(store, plan), shutil.disk_usage(store.path).free
    if needed > free:
        raise RunError(
            f"The samples would take {human(needed)}, but {store.path} has {human(free)} free. Keep fewer (thin=…, "
            f"keep_last=…), or smaller ones (float16=True)."
        )


def human(size: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Leave the user's global generators as they were; steps may seed them."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002

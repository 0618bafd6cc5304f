"""What can be known to be wrong before the first step."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_leaves, tree_map

from langevin.core import random as rng
from langevin.core.batches import (
    GENERATORS,
    Batches,
    LoaderBatches,
    TensorBatches,
    seeded,
    tensor_digest,
)
from langevin.core.full_batches import FullBatches
from langevin.core.likelihoods import MeanLoss
from langevin.core.objective import Objective
from langevin.core.outputs import call
from langevin.core.parameters import half_precision, nonfinite_example, public_name
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.core.pretrained import refuse_padding
from langevin.core.sharding import is_sharded
from langevin.errors import DivergenceError, RunError
from langevin.inference.distributed import Place
from langevin.inference.manifest import describe_posterior, device_of
from langevin.inference.settings import RunSettings
from langevin.inference.steppers import SchedulerFactory, write_recipe
from langevin.samplers import Sampler
from langevin.storage.base import SampleStore
from langevin.storage.files import serialized


def check_posterior(posterior: Any) -> None:
    """Raise for what is not a posterior, or is distributed over processes."""
    if not isinstance(posterior, Posterior):
        raise ValueError(
            f"The first argument is a posterior; given {type(posterior).__name__}. Write lv.Posterior(model, "
            f"lv.likelihoods.Categorical(), num_data=len(train))."
        )
    if any(is_sharded(p) for p in posterior.parameters()):
        raise ValueError(
            "Parameters that fully_shard has distributed are moved in a loop of your own (docs/scaling.md): sample(…) "
            "works with whole replicas of the model, mesh='data=2'."
        )


def check_data(posterior: Posterior, batches: Batches, seed: int, autocast: torch.dtype | None = None) -> float:
    """Raise for data that do not fit the posterior, and for a loss that is not finite or not repeatable; the loss."""
    check_num_data(posterior, batches)
    if not batches.exact_resume:
        warnings.warn(
            "This DataLoader orders its data in a way that can't be repeated (an iterable data set or a sampler of its "
            "own): a resumed run will continue with other batches than an uninterrupted one. Pass the data set "
            "instead.",
            stacklevel=4,
        )
    with preserve_rng_state(), half_precision(device_of(posterior), autocast):
        loss = _check_loss(posterior, batches, seed)
        if batches.exact_resume and not is_repeatable(batches):
            batches.exact_resume = False
            warnings.warn(
                "The data set returns another batch when the same one is read again: it has a random generator or a "
                "state of its own, so the run is not a function of its seed and a resumed one will continue with other "
                "batches. Draw from the global generators of torch, numpy or Python, which are seeded for every batch.",
                stacklevel=4,
            )
    return loss


def is_repeatable(batches: Batches) -> bool:
    """Whether the first batch is the same when it is read again."""
    if isinstance(batches, TensorBatches | FullBatches) or (
        isinstance(batches, LoaderBatches) and batches.loader.num_workers
    ):
        return True  # workers begin every epoch with the same state
    digests, beginning = set(), batches.position()
    for _ in range(2):
        digests.add(tensor_digest([leaf for leaf in tree_leaves(batches.fetch(0, 0)) if isinstance(leaf, Tensor)]))
        batches.rewind(0, 0, beginning)
    return len(digests) == 1


def check_num_data(posterior: Posterior, batches: Batches) -> None:
    """Raise if the posterior's N is not the length of the data."""
    if batches.num_data is not None and batches.num_data != posterior.num_data:
        raise ValueError(
            f"The posterior has num_data={posterior.num_data}, but the data set has {batches.num_data} examples: "
            f"the temperature would be wrong by that ratio. Write Posterior(…, num_data={batches.num_data})."
        )


def check_sampler(
    sampler: Optimizer,
    posterior: Posterior,
    settings: RunSettings,
    schedule: SchedulerFactory | None,
    batches: Batches,
    place: Place,
    out: Any,
    control: bool = False,
) -> None:
    """Raise for what a sampler can't do with this posterior, these settings and these processes."""
    if not isinstance(sampler, Sampler):
        raise ValueError(
            f"{type(sampler).__name__} is not a langevin.Sampler; write lv.sample(posterior, data, lv.SGLD, lr=1e-2)."
        )
    if schedule is not None and sampler.constant_lr:
        raise ValueError(
            f"{type(sampler).__name__} has a constant learning rate by definition; leave out the schedule."
        )
    if sampler.injects_noise:
        refuse_incompatible_layers(posterior)
    check_schedule(schedule, sampler, settings, batches)
    if sampler.adapts and settings.freeze and settings.burn_in == 0:
        raise ValueError(
            f"{type(sampler).__name__} adapts during burn-in and is frozen at its end, so that its target is exact; "
            f"with burn_in=0 there is nothing to learn from. Write burn_in=1000, or, at the price of a biased target, "
            f"freeze=False."
        )
    if sampler.full_batch:
        _check_full_batch(sampler, posterior, batches, control)
    _check_mesh(posterior, sampler, place, out)


def _check_full_batch(sampler: Sampler, posterior: Posterior, batches: Batches, control: bool) -> None:
    """Raise unless the loss is the same function of the weights at every evaluation."""
    name = type(sampler).__name__
    if not isinstance(batches, FullBatches):
        raise ValueError(
            f"{name} needs all data in every step; given mini-batches. Write lv.sample(posterior, data, lv.{name}, "
            f'batch_size="full", …), with data that can be indexed; mini-batches are for lv.SGHMC.'
        )
    if posterior.stochastic_forward:
        raise ValueError(
            f"{name} needs a loss that is a function of the weights; dropout makes it random. Write model.eval(), or "
            f"take the layers out."
        )
    if control:
        raise ValueError(f"{name} has no mini-batch noise to reduce: leave out control_variate.")


def check_schedule(
    schedule: SchedulerFactory | None, stepper: Optimizer, settings: RunSettings, batches: Batches
) -> None:
    """Raise for a schedule that needs more than the step, or ends before the run, or whose state can't be saved."""
    try:
        scheduler = None if schedule is None else schedule(stepper)
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"schedule can't be made: {error}. Write schedule=partial(CosineAnnealingLR, T_max=10_000)."
        ) from error
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("ReduceLROnPlateau needs a validation loss; use a schedule of the step alone.")
    total = getattr(scheduler, "total_steps", None)
    if isinstance(total, int) and total < settings.steps:
        raise ValueError(
            f"{type(scheduler).__name__} ends after {total} steps, the run after {settings.steps}; "
            f"write total_steps={settings.steps}."
        )
    groups = [{name: value for name, value in group.items() if name != "params"} for group in stepper.param_groups]
    serialized([groups, scheduler.state_dict() if scheduler else None, batches.position()])


def _check_mesh(posterior: Posterior, sampler: Sampler, place: Place, out: Any) -> None:
    """Raise for what several processes can't do together."""
    if place.alone:
        return
    if out is None:
        raise ValueError('Several processes write one run, so it needs a directory that all of them see: out="runs/…".')
    if place.mesh.data == 1:
        return
    what = None
    if not sampler.stackable:
        what = f"{type(sampler).__name__} learns from whole mini-batches, of which each process sees a part"
    elif posterior.incompatible_layers() or posterior.allow:
        what = "BatchNorm and dropout depend on how a mini-batch is divided"
    if what is not None:
        raise ValueError(f"{what}: give it processes along chains only, mesh='chains={place.mesh.size},data=1'.")


def why_no_loss(posterior: Posterior, x: Any, error: Exception) -> str:
    """The loss of the first batch raised: what was given, and what is most often wrong."""
    tensors = [leaf for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)]
    shapes = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in tensors)
    what = f"The loss of the first mini-batch can't be computed (inputs {shapes}): {type(error).__name__}: {error}."
    own = next(posterior.parameters()).dtype
    if any(t.is_floating_point() and t.dtype != own for t in tensors):
        array = f"x.astype('{str(own).removeprefix('torch.')}')"
        return f"{what} The model's parameters are {own}; convert the inputs: x.to({own}), or of an array {array}."
    return f"{what} Check that model(x) works on these inputs, and that its output is one tensor."


@torch.no_grad()
def _check_loss(posterior: Posterior, batches: Batches, seed: int) -> float:
    device = next(posterior.parameters()).device
    x, y = tree_map(lambda t: t.to(device), batches.peek())
    before = {name: (buffer, buffer.clone()) for name, buffer in posterior.named_buffers()}
    try:
        try:
            with seeded(seed, 0, 0):  # a layer that draws takes the generators from runs in other threads
                try:
                    check_targets(posterior, batches, x, y)
                except ValueError as error:  # such as a scale that overflows
                    if why := nonfinite_example(x, y, batches.indices(0, 0)):
                        raise DivergenceError(f"There is no loss before the first step. {why}") from error
                    raise
            with seeded(seed, 0, 0):
                loss = float(posterior.loss(x, y))
        except (RuntimeError, AttributeError, TypeError, IndexError) as error:
            raise ValueError(why_no_loss(posterior, x, error)) from error
        with seeded(seed, 0, 1):
            again = float(posterior.loss(x, y))
        moved = {public_name(name) for name, (buffer, value) in before.items() if not torch.equal(buffer, value)}
    finally:
        for buffer, value in before.values():
            buffer.copy_(value)
    if not math.isfinite(loss):
        why = nonfinite_example(x, y, batches.indices(0, 0)) or "Look at the model's weights."
        raise DivergenceError(f"The loss is {loss} before the first step. {why}")
    if unknown := sorted(moved - set(posterior.running_statistics())):
        raise ValueError(
            f"The buffers {unknown} change with every pass through the model, so a sample of the weights is not all of "
            f"its state. Take the layer that moves them out (spectral normalization?) or put it in evaluation mode."
        )
    known = posterior.incompatible_layers() or posterior.allow
    if loss != again and not known:
        raise ValueError(
            "The model's output is random (two passes over one batch differ), so there is no fixed posterior to "
            'sample. Take the randomness out, or allow it: Posterior(…, allow=["dropout"]).'
        )
    return loss


def check_targets(posterior: Posterior, batches: Batches, x: Any, y: Any) -> None:
    """Raise for targets that the likelihood can't have: all of them if they are at hand, else those of this batch."""
    refuse_padding(posterior.model, x)
    if isinstance(posterior.likelihood, MeanLoss):
        posterior.likelihood.check(posterior.model, x, y)
    validate = getattr(posterior.likelihood, "validate", None)
    if validate is not None:
        targets = batches.y if isinstance(batches, TensorBatches) else batches.targets()
        validate(call(posterior.model, x), y if targets is None else targets)


def check_same(store: SampleStore, objective: Objective, posterior: Posterior, batches: Batches) -> None:
    """Refuse to continue a run with another model, N or data."""
    tensors = objective.trainable_parameters() | objective.running_statistics()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    saved = {name: spec["shape"] for name, spec in store.manifest["tensors"].items()}
    if different := [name for name in {**shapes, **saved} if shapes.get(name) != saved.get(name)]:
        raise RunError(f"The model is not the one of {store.name}; these tensors differ: {different[:5]}.")
    if posterior.num_data != store.manifest["num_data"]:
        raise RunError(
            f"{store.name} was sampled with num_data={store.manifest['num_data']}; given {posterior.num_data}."
        )
    for name, value in describe_posterior(posterior).items():
        if store.manifest.get(name) != value and name == "backbone":
            raise RunError(
                f"The frozen weights of the model are not those that {store.name} was sampled with; give the adapters "
                f"the same base model."
            )
        if store.manifest.get(name) != value and name == "architecture":
            raise RunError(
                f"The model is not the one of {store.name}: its layers (print(model)) or the code of a forward method "
                f"have changed. Continue with the same model, or start a new run: lv.sample(…, init=lv.load(…))."
            )
        if store.manifest.get(name) != value:
            raise RunError(f"{store.name} was sampled with {name} {store.manifest.get(name)}; given {value}.")
    given, stored = batches.fingerprint(), store.manifest["data"]
    if different := [name for name in {**given, **stored} if given.get(name) != stored.get(name)]:
        what = ", ".join(f"{name} was {stored.get(name)}, given {given.get(name)}" for name in different)
        raise RunError(
            f"The data are not those of {store.name}: {what}. Continue with the same data, or start a new run from "
            f"this one: lv.sample(…, init=lv.load(…))."
        )


def check_same_stepper(store: SampleStore, stepper: Any, schedule: Any, option: str) -> None:
    """Refuse to continue with another sampler (optimizer) or schedule; one that is not serializable is trusted."""
    call = "sample" if option == "sampler" else "fit"
    for name, entry, given in ((option, "sampler", stepper), ("schedule", "schedule", schedule)):
        saved = store.manifest[entry]
        if given is not None and saved is not None and write_recipe(given) != saved:
            raise RunError(
                f"A run keeps its {name}: {store.name} has {saved or 'none'}, given {write_recipe(given) or given}. "
                f"Leave out {name}=…, or start a new one from it: lv.{call}(…, init=lv.load(…))."
            )


def warn_of_differences(before: dict[str, Any], now: dict[str, Any], batches: Batches) -> None:
    """Warn of what keeps a resumed run from repeating an uninterrupted one bit for bit."""
    different = [
        f"{name} {before[name]} → {value}" for name, value in now.items() if name in before and before[name] != value
    ]
    if different:
        warnings.warn(
            f"The environment has changed ({', '.join(different)}): the samples to come will agree with those of an "
            f"uninterrupted run in distribution, but not bit for bit.",
            stacklevel=4,
        )
    if not batches.exact_resume:
        warnings.warn("The order of the data can't be repeated: the run continues with other batches.", stacklevel=4)


def warn_of_gaps(store: SampleStore) -> None:
    """Say of samples that are missing whether the run draws them again."""
    at = store.checkpoint_steps()
    for gap in store.missing:
        step = at.get(gap.chain)
        if step is not None and step <= gap.after:
            what = f"are drawn again from the checkpoint of step {step}"
        else:
            what = f"can't be drawn again: the checkpoint of chain {gap.chain} is of step {step}. The run continues"
        warnings.warn(f"The {gap}; they {what}.", stacklevel=4)


def stored_size(store: SampleStore, settings: RunSettings) -> float:
    """The bytes that all samples will take."""
    per_chain = min(settings.samples_per_chain(), store.manifest["keep_last"] or math.inf)
    return store.bytes_per_sample() * settings.chains * per_chain


def refuse_if_too_large(store: SampleStore, settings: RunSettings) -> None:
    """Raise if the samples do not fit."""
    needed, free = stored_size(store, settings), store.free_bytes()
    if needed > free:
        where = f"{store.name} has {human_size(free)} free" if store.path else f"{human_size(free)} of memory are free"
        instead = "" if store.path else ', or write them to disk: out="runs/mine"'
        raise RunError(
            f"The samples would take {human_size(needed)}, but {where}. Save fewer (thin=…, keep_last=…) or smaller "
            f"ones (sample_dtype=torch.float16){instead}."
        )


def human_size(size: float) -> str:
    """A number of bytes as people say it."""
    from humanize import naturalsize

    return str(naturalsize(size)) if math.isfinite(size) else "unlimited"


_inside: list[Any] = []  # for every thread that is inside `preserve_rng_state`, the states before the first was


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Leave the user's global generators as they were; steps may seed them.

    They belong to the process, so of several threads the last one to leave restores them.
    """
    with GENERATORS:
        now = rng.generator_states(), random.getstate(), np.random.get_state()  # noqa: NPY002
        _inside.append(_inside[-1] if _inside else now)
    try:
        yield
    finally:
        with GENERATORS:
            states = _inside.pop()
            if not _inside:
                rng.restore_generators(states[0])
                random.setstate(states[1])
                np.random.set_state(states[2])  # noqa: NPY002

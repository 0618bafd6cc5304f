"""`fit`: distributions that are fitted instead of sampled.

It goes through the loop of `sample`: the parameters that move are those of the method, the sampler is a torch
optimizer, and the samples that the store keeps are snapshots of these parameters. The distribution over the weights is
made of the snapshots when it is asked for; so a fit is stored, interrupted, resumed and extended like a run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from langevin.approximations.base import Method
from langevin.approximations.laplace import LaplaceApproximation
from langevin.approximations.variational import Family
from langevin.core.batches import as_batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.ensembles.fit import Fit, read_method
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.inference import checks as preflight
from langevin.inference import sample as loop
from langevin.inference.engine import Callbacks
from langevin.inference.find_map import find_map
from langevin.inference.sample import starting_weights
from langevin.inference.settings import RunSettings
from langevin.samplers.descent import Descent
from langevin.storage.directory import DirectoryStore


def fit(
    posterior: Posterior,
    data: Any,
    method: Method,
    *,
    optimizer: Callable[..., Optimizer] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    burn_in: int = 0,
    schedule: Callable[[Any], LRScheduler] | None = None,
    init: Mapping[str, Tensor] | Run | None = None,
    draws: int = 30,
    seed: int = 0,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    autocast: torch.dtype | None = None,
    accumulate: int = 1,
    callbacks: Callbacks = (),
    progress: bool = True,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 30.0,
    tags: Mapping[str, Any] | None = None,
) -> Fit:
    """Fit a distribution over the weights. The posterior's own model is left as it is.

    Args:
        posterior: what to approximate.
        data: the training data: tensors (x, y), a map-style data set, or a DataLoader.
        method: `lv.MeanField()`, `lv.LowRank(rank=5)`, `lv.SWA(cycle=100)`, `lv.SWAG(…)`, `lv.HWA(…)` or, which takes
            no steps and so none of the options about them, `lv.LaplaceApproximation()`.
        optimizer: an optimizer's class with its options, `partial(torch.optim.Adam, lr=1e-3)`.
        steps: steps in all.
        batch_size: examples per step (128); with a DataLoader it is the loader's.
        burn_in: steps before the first snapshot.
        schedule: a function from an optimizer to a torch scheduler; averages with `low=…` bring their own.
        init: where to start: the model's weights (None), a state dict such as `lv.find_map(…)` returns, the last sample
            of a run, or another fit: its parameters if they are of the same kind, else its mean.
        draws: how many draws of the weights a prediction averages over.
        seed: everything random, in training and in draws, is a function of it.
        device: where to compute; by default where the model is.
        out: the directory of the fit. Without one, it is deleted with the object that is returned.
        autocast: compute the loss in this precision (`torch.bfloat16`).
        accumulate: compute each batch in so many pieces, to save memory.
        callbacks: functions that get a `StepInfo` after every step.
        progress: show a progress bar.
        checkpoint_steps: write a checkpoint every so many steps.
        checkpoint_seconds: and at least that often.
        tags: anything of yours, made of what JSON has, to stand in the manifest.
    """
    _check_method(method, draws)
    posterior = copy.deepcopy(posterior)
    if device is not None:
        posterior.to(device)
    if isinstance(init, Mapping):  # frozen parameters start there too
        load_tensors(posterior, {name: init[name] for name in posterior.fixed_tensors() if name in init})
    refuse_incompatible_layers(posterior, ["batchnorm"] if method.tolerates_batchnorm else [])
    about = {
        "method": method.recipe(),
        "weights": list(posterior.trainable_parameters()),
        "buffers": list(posterior.running_statistics()),
        "draws": draws,
    }
    if isinstance(method, LaplaceApproximation):
        if optimizer is not None or schedule is not None or (init is not None and steps is not None):
            raise ValueError(
                "The Laplace approximation takes no steps from init, and none by mini-batches; leave out optimizer=…, "
                "schedule=… and steps=…, or give the mode that an optimizer found: "
                "init=lv.find_map(posterior, data, method='sgd')."
            )
        mode = init if init is not None else partial(find_map, steps=steps or 1000, progress=progress)
        where = {"seed": seed, "out": out, "tags": tags, "about": about}
        return _at_the_mode(posterior, data, method, mode, batch_size or 256, **where)
    if optimizer is None or not (isinstance(steps, int) and isinstance(burn_in, int) and 0 <= burn_in < steps):
        raise ValueError(
            f"Give an optimizer and how many steps, with burn_in less than that; given steps={steps!r}, "
            f"burn_in={burn_in!r}. Write lv.fit(…, optimizer=partial(torch.optim.Adam, lr=1e-3), steps=1000)."
        )
    own_schedule = method.schedule()
    if own_schedule is not None and schedule is not None:
        raise ValueError(f"{method!r} brings its own schedule (low=…); leave out schedule=… or low=….")
    schedule = own_schedule or schedule
    batches = as_batches(data, batch_size, seed, next(posterior.parameters()).device)
    preflight.check(posterior, batches, partial(Descent, optimizer=optimizer), schedule, seed)
    every, phase = method.spacing(steps, burn_in)
    method.check(posterior, (steps - phase) // every - (burn_in - phase) // every)
    start = _start(method, posterior, init, seed)
    original = copy.deepcopy(posterior) if posterior.running_statistics() else posterior
    run = loop.minimize(
        method.objective(posterior),
        data,
        optimizer,
        steps=steps,
        burn_in=burn_in,
        every=every,
        phase=phase,
        schedule=schedule,
        start=start,
        batch_size=batch_size,
        seed=seed,
        out=out,
        autocast=autocast,
        accumulate=accumulate,
        callbacks=callbacks,
        progress=progress,
        checkpoint_steps=checkpoint_steps,
        checkpoint_seconds=checkpoint_seconds,
        tags=tags,
        about=about,
    )
    return _finished(run, original, data)


@wraps(loop.resume, assigned=())
def resume(path: str | Path, posterior: Posterior, data: Any, **options: Any) -> Run:
    """Continue a run or a fit from its last checkpoint, to `steps` in all (by default as many as were planned).

    It goes on exactly as if it had never stopped: bit for bit in the same environment, and a difference of environment
    is said. Sampler and schedule are known from the run unless they were functions of the user's, which must then be
    given again; of a fit, the optimizer: `optimizer=…` in the place of `sampler=…`.
    """
    manifest = DirectoryStore.open(path).manifest
    if "method" not in manifest:
        return loop.resume(path, posterior, data, **options)
    method = read_method(manifest["method"])
    if isinstance(method, LaplaceApproximation):
        raise RunError(f"{path} is a Laplace approximation, which is complete: there is nothing to go on with.")
    if "optimizer" in options:
        options["sampler"] = partial(Descent, optimizer=options.pop("optimizer"))
    if isinstance(method, Family) and options.get("steps"):
        _check_end(RunSettings(**manifest["plan"]), options["steps"])
    run = loop.resume(path, method.objective(copy.deepcopy(posterior)), data, **options)
    return _finished(run, posterior, data)


def _at_the_mode(
    posterior: Posterior, data: Any, method: LaplaceApproximation, mode: Any, batch_size: int, **options: Any
) -> Fit:
    """A Laplace approximation at the mode that is given, or that a function of posterior and data finds."""
    method.check(posterior, 0)
    seed = options["seed"]
    batches = as_batches(data, None, seed, next(posterior.parameters()).device)
    preflight.check(posterior, batches, partial(Descent, optimizer=partial(torch.optim.SGD, lr=1.0)), None, seed)
    found = mode(posterior, data) if callable(mode) else mode
    load_tensors(posterior, _start(method, posterior, found, seed))
    tensors = method.tensors(posterior, batches, batch_size)
    with torch.no_grad():
        pieces = ((posterior.loss(x, y), batch_size_of(y)) for x, y in batches.whole(4096))
        loss = sum(float(value) * size for value, size in pieces) / posterior.num_data
    run = loop.keep(posterior, data, tensors, {"loss": loss}, **options)
    return _finished(run, posterior, data)


def _check_method(method: Any, draws: int) -> None:
    if not isinstance(method, Method):
        raise ValueError(f"{method!r} is no method; write lv.fit(posterior, data, lv.MeanField(), …).")
    if not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws={draws!r}: a prediction averages over at least one draw of the weights.")


def _check_end(plan: RunSettings, steps: int) -> None:
    """The distribution is that of the last snapshot, so the last step has to be one."""
    if not plan.keeps(steps):
        fitting = steps + (plan.phase - steps) % plan.thin
        raise ValueError(f"steps={steps} would end between two snapshots, {plan.thin} apart; write steps={fitting}.")


def _start(method: Method, posterior: Posterior, init: Any, seed: int) -> dict[str, Tensor]:
    """The parameters with which the loop begins, with the buffers that move with them."""
    names = list(posterior.trainable_parameters())
    given = init
    if isinstance(init, Fit):
        given = {**posterior.fixed_tensors(), **init.approximation.mean}
    weights = starting_weights(given, 0, posterior)
    start = method.start(posterior, {name: weights[name] for name in names}, seed)
    if isinstance(init, Fit):
        last = init.snapshots[-1]
        if all(name in last and last[name].shape == tensor.shape for name, tensor in start.items()):
            start = {name: last[name].to(tensor) for name, tensor in start.items()}
    return start | {name: tensor for name, tensor in weights.items() if name not in names}


def _finished(run: Run, posterior: Posterior, data: Any) -> Fit:
    fit = Fit(run._store, run._predictor, scratch=run._scratch)
    if fit.manifest["buffers"]:
        fit.reestimate(posterior, data)
    return fit

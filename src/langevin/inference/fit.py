"""`fit`: distributions that are fitted instead of sampled.

The engine does it: the objective is that of the approximation, the stepper a torch optimizer, and what the store keeps
are snapshots of the approximation's parameters. The distribution over the weights is made of the snapshots when it is
asked for; so a fit is stored, interrupted, resumed and extended like a run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.approximations import Approximation, DeepEnsemble, Laplace
from langevin.core.arguments import COUNT, DURATION, NATURAL, SEED, validated
from langevin.core.batches import as_batches
from langevin.core.posterior import Posterior, refuse_incompatible_layers
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.fit import Fit
from langevin.ensembles.predictor import Predictor
from langevin.inference import checks
from langevin.inference.callbacks import Callbacks
from langevin.inference.distributed import named_device
from langevin.inference.engine import Engine
from langevin.inference.find_map import find_map
from langevin.inference.fit_ensemble import fit_ensemble
from langevin.inference.fit_laplace import fit_laplace
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.open_store import started
from langevin.inference.resume import finished_fit
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.starts import load_fixed, starting_weights
from langevin.inference.steppers import OptimizerFactory, SchedulerFactory, StepperFactory


@validated(
    steps=COUNT,
    burn_in=NATURAL,
    seed=SEED,
    batch_size=COUNT,
    draws=COUNT,
    grad_accumulation_steps=COUNT,
    checkpoint_steps=COUNT,
    checkpoint_seconds=DURATION,
)
def fit(
    posterior: Posterior,
    data: Any,
    approximation: Approximation,
    *,
    optimizer: Callable[..., Optimizer] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    burn_in: int = 0,
    schedule: SchedulerFactory | None = None,
    init: Mapping[str, Tensor] | Ensemble | None = None,
    draws: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    autocast: torch.dtype | None = None,
    grad_accumulation_steps: int = 1,
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
        approximation: `lv.MeanField()`, `lv.LowRank(rank=5)`, `lv.SWA(cycle=100)`, `lv.SWAG(…)`, `lv.HWA(…)`,
            `lv.MCDropout(rate=0.1)`; `lv.IVON(lr=0.1)`, which is an optimizer itself; or, which take none of the
            options about steps, `lv.Laplace()` and `lv.DeepEnsemble(5)`.
        optimizer: an optimizer's class with its options, `partial(torch.optim.Adam, lr=1e-3)`.
        steps: steps in all.
        batch_size: examples per step (128); with a DataLoader it is the loader's.
        burn_in: steps before the first snapshot.
        schedule: a function from an optimizer to a torch scheduler; averages with `low=…` bring their own.
        init: where to start: the model's weights (None), a state dict such as `lv.find_map(…)` returns, the last sample
            of a run, or another fit: its parameters if they are of the same kind, else its mean.
        draws: how many draws of the weights a prediction averages over (30; Laplace: 100; all members of an ensemble).
        seed: random seed, of training and of draws.
        device: where to compute; by default where the model is.
        out: the directory of the fit. Without one, it is in memory; `fit.save(path)` writes it.
        autocast: compute the loss in this precision (`torch.bfloat16`).
        grad_accumulation_steps: compute each batch in so many parts, to save memory.
        callbacks: functions that get a `StepInfo` after every step.
        progress: show a progress bar.
        checkpoint_steps: write a checkpoint every so many steps.
        checkpoint_seconds: and at least that often.
        tags: anything of yours, JSON-serializable, to be stored in the manifest.
    """
    draws = _checked_draws(approximation, draws)
    checks.check_posterior(posterior)
    if posterior.precisions.priors:
        raise ValueError(
            "lv.fit approximates the weights at a fixed prior; it can't sample the scale of "
            f"{next(iter(posterior.precisions.priors))!r}. Write lv.priors.Gaussian(std=…), or use lv.sample."
        )
    posterior = copy.deepcopy(posterior)
    if device is not None:
        posterior.to(named_device(device))
    load_fixed(init, posterior)
    refuse_incompatible_layers(posterior, approximation.tolerates)
    about = {
        "method": approximation.recipe(),
        "weights": list(posterior.trainable_parameters()),
        "buffers": list(posterior.running_statistics()),
        "draws": draws,
    }
    if isinstance(approximation, Laplace):
        if optimizer is not None or schedule is not None or (init is not None and steps is not None):
            raise ValueError(
                "The Laplace approximation takes no steps from init, and none by mini-batches; leave out optimizer=…, "
                "schedule=… and steps=…, or give the mode that an optimizer found: "
                "init=lv.find_map(posterior, data, method='sgd')."
            )
        return fit_laplace(
            posterior,
            data,
            approximation,
            None if init is None else _start(approximation, posterior, init, seed),
            partial(find_map, steps=steps or 1000, progress=progress),
            batch_size or 256,
            seed=seed,
            out=out,
            tags=tags,
            about=about,
        )
    if isinstance(approximation, DeepEnsemble):
        given = {"optimizer": optimizer, "steps": steps, "schedule": schedule, "init": init}
        if named := [name for name, value in given.items() if value is not None]:
            raise ValueError(
                f"The members of a deep ensemble start at initializations of their own and are trained by AdamW with "
                f"early stopping; leave out {named[0]}=…. An ensemble of networks that you trained is "
                f"lv.Ensemble.concat([a, b, …])."
            )
        return fit_ensemble(
            posterior,
            data,
            batch_size=batch_size,
            seed=seed,
            out=out,
            tags=tags,
            about=about,
            interval=CheckpointInterval(checkpoint_steps, checkpoint_seconds),
            progress=progress,
        )
    make_optimizer = _stepper(approximation, posterior, optimizer, steps, burn_in)
    assert steps is not None
    own_schedule = approximation.schedule()
    if own_schedule is not None and schedule is not None:
        raise ValueError(f"{approximation!r} brings its own schedule (low=…); leave out schedule=… or low=….")
    schedule = own_schedule or schedule
    batches = as_batches(data, batch_size, seed, device_of(posterior))
    checks.check_data(posterior, batches, seed)
    every, phase = approximation.spacing(steps, burn_in)
    approximation.check(posterior, (steps - phase) // every - (burn_in - phase) // every)
    starts = {0: _start(approximation, posterior, init, seed)}
    original = copy.deepcopy(posterior) if posterior.running_statistics() else posterior
    predictor = Predictor(posterior.model, posterior.likelihood)
    settings = RunSettings(
        steps=steps,
        burn_in=burn_in,
        thin=every,
        phase=phase,
        chains=1,
        seed=seed,
        batch_size=batch_size,
        mode="sequential",
        freeze=False,
        grad_accumulation_steps=grad_accumulation_steps,
        autocast=None if autocast is None else str(autocast).removeprefix("torch."),
        measure_temperature=False,
    )
    fixed = {name: tensor.clone() for name, tensor in posterior.fixed_tensors().items()}
    objective = approximation.objective(posterior)
    starts[0] = {name: t.clone() for name, t in objective.running_statistics().items()} | starts[0]
    engine = Engine(objective, batches, make_optimizer, schedule, settings)
    checks.check_schedule(schedule, engine.probe, settings, batches)
    with checks.preserve_rng_state():
        manifest = make_manifest(engine, posterior, inputs=inputs_of(batches), tags=tags) | about
        with started(engine, out, manifest, fixed, starts, ("", "") if progress else None) as store:
            engine.run(store, callbacks, progress, CheckpointInterval(checkpoint_steps, checkpoint_seconds))
    return finished_fit(store, predictor, original, data)


def _stepper(
    approximation: Approximation,
    posterior: Posterior,
    optimizer: Callable[..., Optimizer] | None,
    steps: int | None,
    burn_in: int,
) -> StepperFactory:
    """What makes the optimizer: the approximation's own, or that of the user."""
    own, kind = approximation.own_optimizer, type(approximation).__name__
    if own and optimizer is not None:
        raise ValueError(f"{kind} is an optimizer itself: leave out optimizer=…, and write lv.{kind}(lr=0.1).")
    if (optimizer is None and not own) or steps is None or not 0 <= burn_in < steps:
        call = f"lv.{kind}(lr=0.1)" if own else "optimizer=partial(torch.optim.Adam, lr=1e-3)"
        raise ValueError(
            f"Give {'' if own else 'an optimizer and '}how many steps, with burn_in less than that; given "
            f"steps={steps!r}, burn_in={burn_in!r}. Write lv.fit(…, {call}, steps=1000)."
        )
    if own:
        make = approximation.stepper(posterior)
        assert make is not None
        return make
    assert optimizer is not None
    return OptimizerFactory(optimizer)


def _checked_draws(approximation: Any, draws: int | None) -> int:
    if not isinstance(approximation, Approximation):
        raise ValueError(
            f"{approximation!r} is not an approximation; write lv.fit(posterior, data, lv.MeanField(), …)."
        )
    draws = approximation.prediction_draws if draws is None else draws
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws={draws!r}: a prediction averages over at least one draw of the weights.")
    return draws


def _start(approximation: Approximation, posterior: Posterior, init: Any, seed: int) -> dict[str, Tensor]:
    """The parameters with which the loop begins, with the running statistics that belong to them."""
    names = list(posterior.trainable_parameters())
    given = init
    if isinstance(init, Fit):
        given = {**posterior.fixed_tensors(), **init.distribution.mean}
    weights = starting_weights(given, 0, posterior)
    start = approximation.start({name: weights[name] for name in names}, seed)
    if isinstance(init, Fit):
        last = init.snapshots[-1]
        if all(name in last and last[name].shape == tensor.shape for name, tensor in start.items()):
            start = {name: last[name].to(tensor) for name, tensor in start.items()}
    return start | {name: tensor for name, tensor in weights.items() if name not in names}

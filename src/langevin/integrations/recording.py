"""What the training loops of other libraries have in common: which steps are recorded, and what changes the target.

A training loop has settings that are harmless for an optimizer and wrong for a sampler: clipped gradients, weight decay
beside a prior, a learning rate that decays to zero, a loss that is scaled. Each is refused before the first step.
"""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from langevin.core.likelihoods import MeanLoss
from langevin.core.posterior import Posterior
from langevin.ensembles.run import Run
from langevin.inference.loop_thermometer import LoopThermometer
from langevin.inference.recorder import Recorder
from langevin.samplers import Sampler


class Recording:
    """Records every `thin`-th step after `burn_in` through a `lv.Recorder`; the chain is the sampler's."""

    def __init__(
        self,
        posterior: Posterior,
        sampler: Optimizer,
        burn_in: int,
        thin: int,
        out: str | Path | None,
        active: bool = True,
    ) -> None:
        self.posterior, self.sampler = posterior, checked_sampler(posterior, sampler)
        self.burn_in, self.thin = burn_in, thin
        self._out, self._active = out, active
        self._recorder: Recorder | None = None
        LoopThermometer.of(posterior, self.sampler)  # from the first step on; the recorder finds it

    def record(self, step: int, loss: float | Tensor | None = None) -> None:
        """Record the weights after a step, if its turn has come; only then the loss is read from its device."""
        if self.sampler.adapts and step == self.burn_in:
            self.sampler.freeze()
        if not self._active or step <= self.burn_in or (step - self.burn_in) % self.thin:
            return
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        stats: dict[str, Any] = {} if loss is None else {"loss": float(loss)}
        self._opened().record(step, chain=self.sampler.param_groups[0]["chain"], **stats)

    def flush(self) -> None:
        """Write what is buffered: the samples before a checkpoint have to be on disk when it is written."""
        if self._recorder is not None:
            self._recorder.flush()

    def run(self) -> Run:
        """The samples so far."""
        return self._opened().run()

    def close(self) -> None:
        """Write what is buffered, and let go of the directory."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _opened(self) -> Recorder:
        if self._recorder is None:
            resume: Any = None if self._out is None else "auto"
            self._recorder = Recorder(self.posterior, self.sampler, out=self._out, resume=resume)
        return self._recorder


def checked_sampler(posterior: Posterior, sampler: Any) -> Sampler:
    """The sampler; raises unless a training loop of another library can step it."""
    if not isinstance(sampler, Sampler):
        raise ValueError(
            f"{type(sampler).__name__} is not a langevin.Sampler. Write sampler = lv.SGHMC(posterior.parameters(), "
            f"lr=1e-3, num_data=posterior.num_data) and give it to the trainer as its optimizer."
        )
    if sampler.needs_closure:
        raise ValueError(
            f"{type(sampler).__name__} needs several gradients a step, which a trainer does not compute; use lv.SGHMC, "
            f"or lv.sample(posterior, data, lv.{type(sampler).__name__})."
        )
    if sampler.param_groups[0]["num_data"] != posterior.num_data:
        raise ValueError(
            f"The sampler has num_data={sampler.param_groups[0]['num_data']}, the posterior {posterior.num_data}: the "
            f"temperature would be wrong by their ratio. Write num_data=posterior.num_data."
        )
    if isinstance(posterior.likelihood, MeanLoss):
        raise ValueError(
            "MeanLoss() calls the model with its labels, which a trainer does by itself; give the posterior the "
            "likelihood, such as lv.likelihoods.Categorical()."
        )
    return sampler


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside the wrapper of a training loop."""
    while not isinstance(optimizer, Sampler) and isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def refuse(setting: str, value: Any, why: str, instead: str) -> None:
    """Raise for a setting of a trainer that changes the target."""
    raise ValueError(f"{setting}={value!r} {why}. Write {instead}.")


def refuse_clipping(setting: str, value: Any, instead: str) -> None:
    """Raise for clipped gradients."""
    if value:
        why = "clips gradients, so the samples are not of the posterior; a sampler's step is bounded by its lr"
        refuse(setting, value, why, instead)


def refuse_accumulation(setting: str, value: int) -> None:
    """Raise for a loss that is summed or scaled over several batches."""
    if value > 1:
        why = "scales the loss of each batch, which is U/N already; the target would be at another temperature"
        refuse(setting, value, why, f"{setting}=1 and a larger batch, or lv.sample(…, grad_accumulation_steps={value})")


def refuse_decay(value: float, prior: Any) -> None:
    """Raise for weight decay."""
    if value:
        why = f"is a second prior beside the posterior's, {str(prior)[:60]}"
        refuse("weight_decay", value, why, "weight_decay=0.0; the prior is an argument of lv.Posterior")


def refuse_dropout(posterior: Posterior) -> None:
    """Raise for layers that are random or batch-dependent in training mode, which trainers switch on."""
    was = {module: module.training for module in posterior.model.modules()}
    posterior.model.train()
    found = [layer for layer in posterior.incompatible_layers() if layer.kind not in posterior.allow]
    for module, training in was.items():
        module.training = training
    if found:
        raise ValueError(
            f"The trainer puts the model in training mode, in which layer {found[0].name!r} ({found[0].kind}, one of "
            f"{len(found)}) changes the model at random or couples examples: there is no fixed posterior to sample. "
            f"Set dropout to 0 in the model's config and in LoraConfig, or allow it: lv.Posterior(…, "
            f"allow=[{found[0].kind!r}])."
        )


def refuse_schedule(scheduler: Any, steps: int) -> None:
    """Raise for a learning rate that decays to zero without ever rising again: the chain would come to rest."""
    rates = planned_rates(scheduler, steps)
    if not rates:
        return
    peak = max(range(len(rates)), key=rates.__getitem__)
    rises = any(after > before * (1 + 1e-9) for before, after in zip(rates[peak:], rates[peak + 1 :], strict=False))
    if rates[-1] < 0.01 * rates[peak] and not rises:
        raise ValueError(
            f"The learning rate decays from {rates[peak]:.3g} to {rates[-1]:.3g} in {steps} steps, so the chain comes "
            f'to rest: its last samples are one point. Write lr_scheduler_type="constant" (or '
            f'"constant_with_warmup"), or a cyclical schedule: lv.cyclical(1_000)(sampler).'
        )


def planned_steps(scheduler: Any) -> int:
    """How many steps a schedule is made for, as far as it says so itself; 0 if it does not."""
    scheduler = getattr(scheduler, "scheduler", scheduler)
    if isinstance(scheduler, LambdaLR):  # those of transformers
        known = getattr(scheduler.lr_lambdas[0], "keywords", {}).get("num_training_steps")
    else:
        known = next((n for a in ("T_max", "total_steps", "total_iters") if (n := getattr(scheduler, a, None))), None)
    return int(known or 0)


def planned_rates(scheduler: Any, steps: int) -> list[float]:
    """The learning rates of the first parameter group, at up to 1000 of the steps; empty if they can't be foreseen."""
    scheduler = getattr(scheduler, "scheduler", scheduler)  # inside the wrapper of Accelerate
    if scheduler is None or not 0 < steps < math.inf:
        return []
    at = sorted({round(i * steps / 1000) for i in range(1001)} if steps > 1000 else range(steps + 1))
    if isinstance(scheduler, LambdaLR):
        return [float(scheduler.base_lrs[0]) * float(scheduler.lr_lambdas[0](step)) for step in at]
    clone = copy.copy(scheduler)
    groups = scheduler.optimizer.param_groups
    clone.optimizer = torch.optim.SGD(
        [{"params": [torch.zeros(1, device="cpu")], "lr": float(group["lr"])} for group in groups]
    )
    for mine, theirs in zip(clone.optimizer.param_groups, groups, strict=True):
        mine["initial_lr"] = theirs.get("initial_lr", theirs["lr"])
    rates = [float(clone.optimizer.param_groups[0]["lr"])]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch misses the steps of an optimizer, which is none
            for _ in range(min(steps, 100_000)):
                clone.step()
                rates.append(float(clone.optimizer.param_groups[0]["lr"]))
    except Exception:  # it needs more than the step
        return []
    return rates


def refuse_other_data(posterior: Posterior, loader: Any) -> None:
    """Raise if a loader has another number of examples than the posterior; a stream's is not known."""
    try:
        count = len(loader.dataset)
    except (TypeError, AttributeError):
        return
    if count != posterior.num_data:
        raise ValueError(
            f"The posterior has num_data={posterior.num_data}, but the training set has {count} examples: the "
            f"temperature would be wrong by that ratio. Write lv.Posterior(…, num_data={count})."
        )

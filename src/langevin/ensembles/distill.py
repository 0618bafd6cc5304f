"""Distillation: the predictive distribution of an ensemble, compressed into one network.

Korattikara, Rathod, Murphy & Welling (2015), "Bayesian dark knowledge", NeurIPS. The student S(y|x,w) minimizes

    mean over inputs x of  KL( p(y|x) ‖ S(y|x,w) ),      p(y|x) = mean_s p(y|x,θ_s),

which needs no labels. The student learns the total uncertainty but not its epistemic part: the mutual information (or
epistemic variance) of a single network is 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.arguments import COUNT, POSITIVE, SEED, validated
from langevin.core.batches import batch_size_of
from langevin.core.devices import as_tensor
from langevin.core.likelihoods import Bernoulli, Categorical
from langevin.core.outputs import call
from langevin.ensembles.ensemble import Ensemble, WeightList, Weights
from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.ensembles.predictor import Predictor

CITATION = """@inproceedings{korattikara2015bayesian,
  title = {Bayesian Dark Knowledge},
  author = {Korattikara, Anoop and Rathod, Vivek and Murphy, Kevin and Welling, Max},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2015}
}"""


class MeanAndVariance:
    """The likelihood of a regression student: a mean and a log-variance for every value of y, (n, 2·values)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape  # of a single y

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density of independent Gaussians."""
        mean, variance = self.moments(output)
        log_density = -0.5 * ((target.reshape(mean.shape) - mean).square() / variance + (2 * math.pi * variance).log())
        return log_density.reshape(len(mean), -1).sum(1)

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        mean, log_variance = output.reshape(len(output), 2, *self.shape).unbind(1)
        return mean, log_variance.exp()


class Distilled(Ensemble):
    """A student network, as an ensemble of one member."""

    def __init__(self, model: nn.Module, likelihood: Any, losses: list[float], manifest: dict[str, Any]) -> None:
        self.model = model
        self._manifest, self._losses = manifest, losses
        self._own = WeightList(Predictor(model, likelihood))

    @property
    def predictors(self) -> list[tuple[Predictor, Callable[[int], Iterator[Weights]]]]:
        """The student."""
        return self._own.predictors

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the teacher and the options of `distill`."""
        return self._manifest

    def _member(self, index: int) -> Weights:
        return self._own[index]

    def __len__(self) -> int:
        return 1

    def trace(self, name: str) -> dict[int, list[float]]:
        """The "loss" of every step: KL(ensemble ‖ student) on its mini-batch, in nats."""
        if name != "loss":
            raise ValueError(f'A distilled network has the trace "loss" only, not {name!r}.')
        return {0: list(self._losses)}


@validated(steps=COUNT, batch_size=COUNT, lr=POSITIVE, seed=SEED, predict_batch_size=COUNT)
def distill(
    run: Any,
    student: nn.Module,
    inputs: Any,
    *,
    steps: int = 3000,
    batch_size: int = 128,
    lr: float = 3e-3,
    seed: int = 0,
    predict_batch_size: int = 1024,
) -> Distilled:
    """Train one network to predict what an ensemble predicts (no labels needed). The given student is not modified.

    Args:
        run: an ensemble, or any object with `predict(x)`.
        student: its output are logits, (n, classes) or one for two classes; for regression a mean and a log-variance of
            every value, (n, 2·values).
        inputs: the inputs to train on: the training inputs, and unlabelled or perturbed ones to match the teacher
            out of distribution.
        steps: steps of Adam, with cosine annealing to 0.
        batch_size: inputs per step.
        lr: the initial learning rate.
        seed: random seed of the mini-batches.
        predict_batch_size: batch size of the ensemble's predictions.
    """
    if not hasattr(run, "predict"):
        raise ValueError(f"run must be an ensemble, or have predict(x); given run=<{type(run).__name__}>.")
    student = copy.deepcopy(student).train()
    device = next(student.parameters()).device
    teacher = run.predict(inputs, batch_size=predict_batch_size)
    inputs = tree_map(lambda t: as_tensor(t).to(device), inputs)
    size = min(batch_size, batch_size_of(inputs))
    likelihood = _likelihood(student, inputs, teacher)
    optimizer = torch.optim.Adam(student.parameters(), lr=lr)
    schedule = CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(steps):
        rows = random.random_subset(batch_size_of(inputs), size, seed=seed, chain=0, step=step).to(device)
        output = call(student, tree_map(lambda t, rows=rows: t[rows], inputs))
        loss = _divergence(teacher, rows.cpu(), likelihood, output)
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"The student diverged at step {step}: its loss is {loss.item()}. Lower lr={lr}.")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    manifest = {
        "method": "distilled",
        "of": getattr(run, "manifest", {}),
        "options": {"steps": steps, "batch_size": size, "lr": lr, "seed": seed, "inputs": batch_size_of(inputs)},
    }
    return Distilled(student.eval(), likelihood, losses, manifest)


def _divergence(teacher: Prediction, rows: Tensor, likelihood: Any, output: Tensor) -> Tensor:
    """KL(teacher ‖ student), averaged over the inputs of these rows."""
    if isinstance(teacher, ClassPrediction):
        p = teacher.probs[rows].to(output)
        log_q: Tensor = likelihood.probs(output).clamp_min(torch.finfo(output.dtype).tiny).log()
        negative: Tensor = torch.special.entr(p) + p * log_q
        return -negative.sum(1).mean()
    mean, variance = likelihood.moments(output)
    ratio: Tensor = teacher.variance[rows].to(output) / variance
    error: Tensor = (teacher.mean[rows].to(output) - mean).square() / variance
    return 0.5 * (ratio - ratio.log() - 1 + error).reshape(len(rows), -1).sum(1).mean()


@torch.no_grad()
def _likelihood(student: nn.Module, inputs: Any, teacher: Prediction) -> Any:
    """The likelihood that matches the shape of the student's output."""
    student.eval()
    shape = tuple(call(student, tree_map(lambda t: t[:2], inputs)).shape[1:])
    student.train()
    if isinstance(teacher, ValuePrediction):
        values = teacher.mean[0].numel()
        if torch.Size(shape).numel() == 2 * values:
            return MeanAndVariance(tuple(teacher.mean.shape[1:]))
        expected = f"(n, {2 * values}): a mean and a log-variance of each of {values} value(s)"
    else:
        classes = teacher.probs.shape[1]
        if shape == tuple(teacher.probs.shape[1:]):
            return Categorical()
        if classes == 2 and shape in ((), (1,)):
            return Bernoulli()
        expected = f"(n, {classes}): the logits of {classes} classes"
    raise ValueError(f"The student's output has shape {('n', *shape)}, expected {expected}.".replace("'", ""))

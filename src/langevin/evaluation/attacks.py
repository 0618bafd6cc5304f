"""Adversarial inputs, against one model or against the whole predictive distribution.

The loss that is raised is −log p̄(y|x), p̄ = mean_s p(y|x,θ_s); its gradient −Σ_s p_s ∇log p_s / Σ_s p_s is streamed over
samples, so memory does not grow with them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.ensembles.ensemble import Ensemble
from langevin.evaluation import scores
from langevin.evaluation.inputs import class_prediction_of
from langevin.evaluation.ood import Detection, out_of_distribution


class Attack(ABC):
    """A way to change inputs, each number by at most `eps`, such that the prediction gets worse.

    A victim is an ensemble, whose whole predictive is attacked, or one module that gives logits.
    """

    def __init__(self, eps: float, clip: tuple[float, float] | None) -> None:
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps is the most that a number of the input changes, 0 or more; given eps={eps}.")
        if clip is not None and not clip[0] < clip[1]:
            raise ValueError(f"clip is the range of valid inputs, (lowest, highest); given clip={clip}.")
        self.eps, self.clip = eps, clip

    @abstractmethod
    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """The attacked inputs."""

    def _inside(self, attacked: Tensor, x: Tensor) -> Tensor:
        """The nearest point of the eps-box about x, and of the range of valid inputs."""
        attacked = attacked.clamp(x - self.eps, x + self.eps)
        return attacked if self.clip is None else attacked.clamp(*self.clip)


class FGSM(Attack):
    """Fast gradient sign method (Goodfellow, Shlens & Szegedy 2015): x + eps·sign ∇ₓ(−log p̄(y|x)).

    Args:
        eps: the most that a number of the input changes.
        clip: the range of valid inputs, such as (0, 1); None for no limit.
    """

    def __init__(self, eps: float, *, clip: tuple[float, float] | None = None) -> None:
        super().__init__(eps, clip)

    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """One step of size eps along the sign of the gradient."""
        gradient = predictive_gradient(victim, x, y, batch_size=batch_size)
        return self._inside(x + self.eps * gradient.sign(), x)

    def __repr__(self) -> str:
        return f"FGSM({self.eps}, clip={self.clip})"


class PGD(Attack):
    """Projected gradient descent in the ∞-norm (Madry et al. 2018): FGSM steps, projected onto the eps-box about x.

    Args:
        eps: the most that a number of the input changes.
        steps: how many.
        step_size: of each; by default 2.5 eps/steps.
        clip: the range of valid inputs, such as (0, 1); None for no limit.
        random_start: begin at a random point of the box, a function of `seed`.
        seed: of the start.
    """

    def __init__(
        self,
        eps: float,
        *,
        steps: int = 10,
        step_size: float | None = None,
        clip: tuple[float, float] | None = None,
        random_start: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(eps, clip)
        if steps < 1 or (step_size is not None and not step_size > 0):
            raise ValueError(
                f"PGD needs 1 or more steps of a positive size; given steps={steps}, step_size={step_size}."
            )
        self.steps, self.random_start, self.seed = steps, random_start, seed
        self.step_size = 2.5 * eps / steps if step_size is None else step_size

    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """`steps` steps along the sign of the gradient, each projected."""
        attacked = x
        if self.random_start:
            generator = torch.Generator().manual_seed(self.seed)
            start = (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1).to(x.device)
            attacked = self._inside(x + self.eps * start, x)
        for _ in range(self.steps):
            gradient = predictive_gradient(victim, attacked, y, batch_size=batch_size)
            attacked = self._inside(attacked + self.step_size * gradient.sign(), x)
        return attacked

    def __repr__(self) -> str:
        return f"PGD({self.eps}, steps={self.steps}, step_size={self.step_size:.3g}, clip={self.clip})"


@dataclass(frozen=True)
class Attacked:
    """What an attack did: accuracy before and after, and whether uncertainty tells attacked inputs from clean ones."""

    x: Tensor  # the attacked inputs
    clean_accuracy: float
    accuracy: float
    nll: float  # after
    detection: dict[str, Detection]  # by max probability, entropy, mutual information; clean inputs are the inside


def predictive_gradient(victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
    """∇ₓ(−log p̄(y|x)) of every example, in the shape of x.

    Weights p_s/Σp_s are kept relative to the largest so far: a probability that is 0 in float32 still has a gradient.
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise ValueError(
            "An attack changes inputs by small amounts: x must be one tensor of real numbers, not integers, tuples or "
            "dicts. Images of bytes: pass x.float() / 255."
        )
    if len(x) == 0 or len(x) != len(y):
        raise ValueError(f"An attack needs as many labels as inputs, one or more; given {len(y)} and {len(x)}.")
    pieces = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    return torch.cat([_gradient(victim, piece_x, piece_y) for piece_x, piece_y in pieces])


def under_attack(
    victim: Any, attack: Attack, x: Tensor, y: Tensor, *, surrogate: Any = None, batch_size: int = 256
) -> Attacked:
    """How the victim's predictive does on inputs attacked through itself, or through a surrogate (a transfer attack)."""
    attacked = attack.perturb(victim if surrogate is None else surrogate, x, y, batch_size=batch_size)
    before = class_prediction_of(victim, x, batch_size=batch_size)
    after = class_prediction_of(victim, attacked, batch_size=batch_size)
    return Attacked(
        x=attacked,
        clean_accuracy=scores.accuracy(before.probs, y),
        accuracy=scores.accuracy(after.probs, y),
        nll=scores.negative_log_likelihood(after.probs, y),
        detection=out_of_distribution(before, after),
    )


def _gradient(victim: Any, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    largest = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(x, dtype=torch.float64)
    for log_prob in _log_probs(victim, x, y):
        (slope,) = torch.autograd.grad(log_prob.sum(), x)
        log_p = log_prob.detach().double().to(x.device)
        new = torch.maximum(largest, log_p)
        shrink, weight = torch.exp(largest - new), torch.exp(log_p - new)
        total = shrink * total + weight
        weighted = _rowwise(shrink, weighted) + _rowwise(weight, slope.double())
        largest = new
    return _rowwise(-1 / total, weighted).to(x.dtype)


def _log_probs(victim: Any, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    if hasattr(victim, "log_probs"):
        found: Iterator[Tensor] = victim.log_probs(x, y)
        return found
    if isinstance(victim, nn.Module):
        return Ensemble.from_classifier(victim).log_probs(x, y)
    raise ValueError(
        f"An attack needs a run, or a module that gives logits, to take gradients through; given "
        f"{type(victim).__name__}."
    )


def _rowwise(factor: Tensor, values: Tensor) -> Tensor:
    return factor.reshape(-1, *[1] * (values.dim() - 1)) * values

"""Adversarial attacks on one model or on the predictive distribution of an ensemble.

The attacked loss is −log p̄(y|x), p̄ = mean_s p(y|x,θ_s). Its gradient −Σ_s p_s ∇log p_s / Σ_s p_s is streamed over
samples, so memory does not grow with their number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.core.arguments import COUNT, NATURAL, POSITIVE, SEED, validated
from langevin.ensembles.ensemble import Ensemble
from langevin.evaluation import scores
from langevin.evaluation.inputs import class_prediction_of
from langevin.evaluation.ood import Detection, out_of_distribution


class Attack(ABC):
    """A perturbation of the inputs within an ∞-norm ball of radius `eps` that raises the loss.

    A victim is an ensemble, whose predictive distribution is attacked, or a module that returns logits.
    """

    def __init__(self, eps: float, clip: tuple[float, float] | None) -> None:
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps is the radius of the ∞-norm ball, 0 or more; given eps={eps}.")
        if clip is not None and not clip[0] < clip[1]:
            raise ValueError(f"clip is the range of valid inputs, (lowest, highest); given clip={clip}.")
        self.eps, self.clip = eps, clip

    @abstractmethod
    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """The perturbed inputs."""

    def _inside(self, attacked: Tensor, x: Tensor) -> Tensor:
        """Projection onto the eps-box about x and onto the range of valid inputs."""
        attacked = attacked.clamp(x - self.eps, x + self.eps)
        return attacked if self.clip is None else attacked.clamp(*self.clip)


class FGSM(Attack):
    """Fast gradient sign method (Goodfellow, Shlens & Szegedy 2015): x + eps·sign ∇ₓ(−log p̄(y|x)).

    Args:
        eps: radius of the ∞-norm ball.
        clip: the range of valid inputs, such as (0, 1); None for no limit.
    """

    @validated(eps=NATURAL)
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
        eps: radius of the ∞-norm ball.
        steps: number of gradient steps.
        step_size: size of a step; by default 2.5 eps/steps.
        clip: the range of valid inputs, such as (0, 1); None for no limit.
        random_start: start from a random point of the box.
        seed: random seed of the start.
    """

    @validated(eps=NATURAL, steps=COUNT, step_size=POSITIVE, seed=SEED)
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
                f"PGD needs at least one step of positive size; given steps={steps}, step_size={step_size}."
            )
        self.steps, self.random_start, self.seed = steps, random_start, seed
        self.step_size = 2.5 * eps / steps if step_size is None else step_size

    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """`steps` steps along the sign of the gradient, each projected."""
        attacked = x
        if self.random_start:
            generator = torch.Generator().manual_seed(self.seed)
            start = (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype, device="cpu") - 1).to(x.device)
            attacked = self._inside(x + self.eps * start, x)
        for _ in range(self.steps):
            gradient = predictive_gradient(victim, attacked, y, batch_size=batch_size)
            attacked = self._inside(attacked + self.step_size * gradient.sign(), x)
        return attacked

    def __repr__(self) -> str:
        return f"PGD({self.eps}, steps={self.steps}, step_size={self.step_size:.3g}, clip={self.clip})"


@dataclass(frozen=True)
class Attacked:
    """Accuracy before and after an attack, and detection of attacked among clean inputs by uncertainty."""

    x: Tensor  # the perturbed inputs
    clean_accuracy: float
    accuracy: float
    nll: float  # on the perturbed inputs
    detection: dict[str, Detection]  # by max probability, entropy, mutual information; clean inputs are in-distribution


@validated(batch_size=COUNT)
def predictive_gradient(victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
    """∇ₓ(−log p̄(y|x)) of every example, in the shape of x.

    The weights p_s/Σp_s are computed relative to the largest so far (log-sum-exp), so that a probability that
    underflows to 0 still has a gradient.
    """
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise ValueError(
            "An attack takes gradients with respect to x: x must be one floating-point tensor, not integers, tuples or "
            "dicts. For uint8 images pass x.float() / 255."
        )
    if len(x) == 0 or len(x) != len(y):
        raise ValueError(f"An attack needs as many labels as inputs, at least one; given {len(y)} and {len(x)}.")
    batches = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    return torch.cat([_gradient(victim, batch_x, batch_y) for batch_x, batch_y in batches])


@validated(batch_size=COUNT)
def under_attack(
    victim: Any, attack: Attack, x: Tensor, y: Tensor, *, surrogate: Any = None, batch_size: int = 256
) -> Attacked:
    """Accuracy and detection under a white-box attack, or a transfer attack through a surrogate."""
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
        f"An attack needs an ensemble, or a module that returns logits, to take gradients through; given "
        f"{type(victim).__name__}."
    )


def _rowwise(factor: Tensor, values: Tensor) -> Tensor:
    return factor.reshape(-1, *[1] * (values.dim() - 1)) * values

"""Adversarial inputs, against one model or against the whole predictive distribution.

The loss that is raised is −log p̄(y|x), p̄ = mean_s p(y|x,θ_s); its gradient Σ_s p_s ∇log p_s / Σ_s p_s is streamed over
samples, so memory does not grow with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from langevin.evaluation.ood import Detection


class Attack(ABC):
    """A way to change inputs, each number by at most `eps`, such that the prediction gets worse."""

    eps: float
    clip: tuple[float, float] | None

    @abstractmethod
    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """The attacked inputs. The victim is a run (its whole predictive) or one module that gives logits."""


class FGSM(Attack):
    """Fast gradient sign method (Goodfellow, Shlens & Szegedy 2015): x + eps·sign ∇ₓ(−log p̄(y|x)).

    Args:
        eps: the most that a number of the input changes.
        clip: the range of valid inputs, such as (0, 1); None for no limit.
    """

    def __init__(self, eps: float, *, clip: tuple[float, float] | None = None) -> None:
        self.eps, self.clip = eps, clip

    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """One step of size eps along the sign of the gradient."""
        raise NotImplementedError


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
        self.eps, self.steps, self.clip = eps, steps, clip
        self.step_size = 2.5 * eps / steps if step_size is None else step_size
        self.random_start, self.seed = random_start, seed

    def perturb(self, victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """`steps` steps along the sign of the gradient, each projected."""
        raise NotImplementedError


@dataclass(frozen=True)
class Attacked:
    """What an attack did: accuracy before and after, and whether uncertainty tells attacked inputs from clean ones."""

    x: Tensor  # the attacked inputs
    clean_accuracy: float
    accuracy: float
    nll: float  # after
    detection: dict[str, Detection]  # by max probability, entropy, mutual information; clean inputs are the inside


def predictive_gradient(victim: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
    """∇ₓ(−log p̄(y|x)) of every example, in the shape of x."""
    raise NotImplementedError


def under_attack(
    victim: Any, attack: Attack, x: Tensor, y: Tensor, *, against: Any = None, batch_size: int = 256
) -> Attacked:
    """How the victim's predictive does on inputs attacked against itself, or against another (a transfer attack)."""
    raise NotImplementedError

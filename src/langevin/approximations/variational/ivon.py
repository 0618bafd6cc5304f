"""IVON: independent normal weights, fitted by an online Newton method (Shen et al. 2024).

q = N(m, 1/P), P = N(h + δ), h the averaged Hessian of the mean loss and δ = 1/(N s²) the decay of a prior N(0, s²).
A step draws w = m + ε/√P, with ĝ the gradient of the mean loss at w and ĥ = ĝ ε √P an estimate of its Hessian:

    g ← β₁ g + (1 − β₁) ĝ
    P ← P − ρ R + ½ (ρ R)²/P        ρ = 1 − β₂,  R = N (h − ĥ);  the last term keeps P above P/2
    m ← m − lr (P₀/P) (g/(1 − β₁ᵗ) + δ m)      P₀ = 1/init_std²: at first the step of SGD with momentum

Nothing but gradients of the ELBO is needed: with L = −ELBO/N, ĝ + δ m = ∂L/∂m and h − ĥ = 2P² ∂L/∂P. So the objective
is that of the other variational families, in the parameters m and P, and IVON is an optimizer of its own.

Target: the q of this form with the smallest KL divergence to the posterior. N scales P: the variance of the weights is
1/(N(h + δ)). The last term of P biases it by about (ρ/2)·Var(R)/P; averaging over 1/ρ steps leaves a variance of
(ρ/2)·Var(R).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.approximations.base import APPROXIMATIONS
from langevin.approximations.distributions import LowRankGaussian, Weights
from langevin.approximations.variational.objective import Reparameterized
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian


@APPROXIMATIONS.register
@dataclass(frozen=True)
class IVON(Reparameterized):
    """Improved variational online Newton (Shen et al. 2024): mean-field at the cost of Adam. For Gaussian priors.

    `lv.fit(posterior, train, lv.IVON(lr=0.1), steps=10_000)`: it is an optimizer already.

    Args:
        lr: learning rate, at first that of SGD; later steps are scaled by the averaged curvature.
        beta1: momentum of the gradient.
        beta2: of the average of the Hessian. It forgets in 1/(1 − beta2) steps; a fit needs several times as many.
        init_std: the initial standard deviation of every weight.
        draws: draws of the weights per step.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.9995
    init_std: float = 0.05
    draws: int = 1
    own_optimizer: ClassVar[bool] = True
    reparameterization: ClassVar[str] = "plain"  # type: ignore[misc]  # a setting of the other families
    kl_warmup: ClassVar[int] = 0  # type: ignore[misc]
    citation: ClassVar[str] = """@inproceedings{shen2024variational,
  title={Variational learning is effective for large deep networks},
  author={Shen, Yuesong and Daheim, Nico and Cong, Bai and Nickl, Peter and Marconi, Gian Maria and
    Bazan, Clement and Yokota, Rio and Gurevych, Iryna and Cremers, Daniel and Khan, Mohammad Emtiyaz and
    M{\\"o}llenhoff, Thomas}, booktitle={International Conference on Machine Learning}, year={2024}}"""

    def __post_init__(self) -> None:
        for name in ("lr", "init_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"IVON({name}={getattr(self, name)}): must be positive; the defaults are lr=0.1, init_std=0.05."
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"IVON({name}={getattr(self, name)}): from 0 to below 1, such as beta1=0.9, beta2=0.9995."
                )
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(f"IVON(draws={self.draws!r}): at least one draw per step.")

    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """Means at the weights, standard deviations `init_std`."""
        means = {f"mean/{name}": tensor.clone() for name, tensor in weights.items()}
        return means | {f"precision/{name}": torch.full_like(t, self.init_std**-2) for name, t in weights.items()}

    def normal(self, parameters: Weights, names: list[str]) -> LowRankGaussian:
        """N(mean, 1/precision)."""
        return LowRankGaussian(
            {name: parameters[f"mean/{name}"] for name in names},
            {name: parameters[f"precision/{name}"].reciprocal() for name in names},
        )

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """Only Gaussian priors have a constant decay."""
        for name, prior in posterior.priors().items():
            if type(prior) is not Gaussian:
                raise ValueError(
                    f"IVON needs the decay of a Gaussian prior; {name!r} has {prior!r}. Use lv.priors.Gaussian(std), "
                    f"or lv.MeanField()."
                )

    def stepper(self, posterior: Posterior) -> Callable[..., Optimizer]:
        """The optimizer of m and P."""
        self.check(posterior, 0)
        decays = list(posterior.gaussian_decays()[0].values())

        def make(params: Sequence[Tensor], *, num_data: int, seed: int, chain: Any) -> Optimizer:
            return OnlineNewton(params, decays, self, num_data)

        return make


class OnlineNewton(Optimizer):
    """The updates above, from the gradients of −ELBO/N with respect to all means, then all precisions."""

    def __init__(self, params: Sequence[Tensor], decays: Sequence[float], method: IVON, num_data: int) -> None:
        half = len(params) // 2
        pairs = zip(params[:half], params[half:], decays, strict=True)
        groups = [{"params": [m, p], "decay": decay} for m, p, decay in pairs]
        defaults = {
            "lr": method.lr,
            "beta1": method.beta1,
            "beta2": method.beta2,
            "first": method.init_std**-2,
            "num_data": num_data,
            "steps": 0,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every mean and its precision."""
        for group in self.param_groups:
            m, p = group["params"]
            if m.grad is None:
                continue
            group["steps"] += 1
            rho, beta1, decay = 1 - group["beta2"], group["beta1"], group["decay"]
            g = self.state[m].setdefault("momentum", torch.zeros_like(m))
            g.lerp_(m.grad - decay * m, 1 - beta1)
            change = rho * 2 * group["num_data"] * p.square() * p.grad
            p.add_(0.5 * change.square() / p - change)
            step = g / (1 - beta1 ** group["steps"]) + decay * m
            m.addcdiv_(step, p, value=-group["lr"] * group["first"])

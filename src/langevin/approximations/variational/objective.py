"""The negative evidence lower bound (ELBO) over N: the loss that fits q.

    loss(x, y) = E_q[−log p(y|x,w)] + KL(q‖prior)/N = −(estimate of the ELBO)/N

It is the posterior's loss with the expectation of the data term, and with −KL instead of log p(w).
KL = −H[q] − E_q[log p(w)], the second term in closed form for Gaussian and Laplace priors and otherwise estimated by
one draw. Both terms are unbiased.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from langevin.approximations.base import Approximation
from langevin.approximations.distributions import LowRankGaussian, Weights
from langevin.approximations.variational.expected import expected_log_prob
from langevin.approximations.variational.layers import find_noisy_layers, noise_in
from langevin.core.batches import batch_size_of
from langevin.core.objective import Objective
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior


class Reparameterized(Approximation):
    """A normal distribution whose parameters are fitted by gradients of the ELBO through draws of the weights."""

    reparameterization: str
    draws: int
    kl_warmup: int

    def of(self, posterior: Posterior) -> Variational:
        """The variational objective of a posterior, for a custom loop: `.loss(x, y)`, `.trainable_parameters()`.

        The posterior is modified: make a copy first if its model's parameters are still needed.
        """
        return Variational(posterior, self)

    objective = of

    @abstractmethod
    def start(self, weights: Weights, seed: int) -> dict[str, Tensor]:
        """The initial parameters of q around these weights."""

    @abstractmethod
    def normal(self, parameters: Weights, names: list[str]) -> LowRankGaussian:
        """q with these parameters, differentiable."""

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> LowRankGaussian:
        """q at the last snapshot."""
        return self.normal(snapshots[-1], names)

    def center(self, snapshot: Weights, names: list[str]) -> dict[str, Tensor]:
        """The means."""
        return self.normal(snapshot, names).mean


@dataclass(frozen=True)
class Family(Reparameterized):
    """Base of the variational families, and their common settings.

    The variational parameters are named after the weights: "mean/0.weight", "rho/0.weight".

    Args:
        init_std: the initial standard deviation of every weight.
        tied_mean: one scalar mean for all weights of a layer (Anonymous, "HWA", 2020).
        reparameterization: "local" (independent noise for every example, in the layers' outputs; flipout where an
            example uses a weight at several positions), "flipout", or "plain" (one draw of the weights per batch).
        draws: draws of the weights per step.
        kl_warmup: steps over which the weight of KL rises from 0 to 1. After them the objective is the ELBO.
    """

    init_std: float = 0.05
    tied_mean: bool = False
    reparameterization: str = "local"
    draws: int = 1
    kl_warmup: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 < self.init_std < float("inf"):
            raise ValueError(f"{name}(init_std={self.init_std}): must be positive, such as 0.05.")
        if self.reparameterization not in ("local", "flipout", "plain"):
            raise ValueError(
                f'{name}(reparameterization={self.reparameterization!r}): choose "local", "flipout" or "plain".'
            )
        if self.draws < 1 or self.kl_warmup < 0:
            raise ValueError(
                f"{name}(draws={self.draws}, kl_warmup={self.kl_warmup}): at least one draw per step, and a warm-up of "
                f"0 steps or more."
            )

    def normal(self, parameters: Weights, names: list[str]) -> LowRankGaussian:
        """N(mean, diag softplus(rho)² + F Fᵀ)."""
        return normal_of(parameters, names)

    def starting_means(self, weights: Weights) -> dict[str, Tensor]:
        """The initial means: the weights, or their mean over each layer with `tied_mean`."""
        if not self.tied_mean:
            return {f"mean/{name}": tensor.clone() for name, tensor in weights.items()}
        layers: dict[str, list[Tensor]] = {}
        for name, tensor in weights.items():
            layers.setdefault(_layer(name), []).append(tensor.flatten())
        return {f"mean/{layer}": torch.cat(tensors).mean() for layer, tensors in layers.items()}


class Variational(Objective):
    """A posterior's model with normally distributed weights; its parameters are those of q."""

    def __init__(self, posterior: Posterior, family: Reparameterized) -> None:
        super().__init__()
        self.posterior, self.num_data, self.family = posterior, posterior.num_data, family
        weights = posterior.trainable_parameters()
        self.names = list(weights)
        self._priors = posterior.priors()
        self._fixed = list(posterior.fixed_tensors())
        self._internal = internal_names(posterior)
        self._data_loss = _DataLoss(posterior)
        self._step: int | None = None
        start = family.start({name: p.detach() for name, p in weights.items()}, seed=0)
        self._keys = list(start)
        self._own = nn.ParameterList(start.values())
        inside = {self._internal[name].removeprefix("model."): name for name in self.names}
        self._layers = [] if family.reparameterization == "plain" else find_noisy_layers(posterior.model, set(inside))
        self._inside = inside
        for parameter in weights.values():
            parameter.requires_grad_(False)

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of q, by name."""
        return dict(zip(self._keys, self._own, strict=True))

    def fixed_tensors(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers of the model."""
        everything = self.posterior.fixed_tensors()
        return {name: everything[name] for name in self._fixed}

    @property
    def stochastic_forward(self) -> bool:
        """True: every pass draws weights from torch's global generator."""
        return True

    def set_step(self, step: int) -> None:
        """For the warm-up of KL."""
        self._step = step

    def distribution(self) -> LowRankGaussian:
        """The current q, differentiable with respect to its parameters."""
        return self.family.normal(self.trainable_parameters(), self.names)

    def loss(self, x: Any, y: Any) -> Tensor:
        """E_q[−log p(y|x,w)] + KL(q‖prior)/N, with KL times its warm-up weight."""
        warmup = self.family.kl_warmup
        weight = 1.0 if self._step is None or warmup == 0 else min(1.0, (self._step + 1) / warmup)
        return self.data_loss(x, y) + weight * self.kl() / self.num_data

    forward = loss

    def data_loss(self, x: Any, y: Any) -> Tensor:
        """E_q[−log p(y|x,w)], the mean over the batch, estimated by `family.draws` draws."""
        q = self.distribution()
        losses = [self._at_a_draw(q, x, y) for _ in range(self.family.draws)]
        return torch.stack(losses).mean()

    def kl(self) -> Tensor:
        """KL(q‖prior) = −H[q] − E_q[log p(w)]."""
        q = self.distribution()
        drawn: dict[str, Tensor] | None = None
        terms = []
        for name, prior in self._priors.items():
            term = expected_log_prob(prior, q.mean[name], q.marginal_variance(name))
            if term is None:
                drawn = self._drawn(q) if drawn is None else drawn
                term = prior.log_prob(drawn[name])
            terms.append(term)
        return -q.entropy() - torch.stack(terms).sum()

    def _at_a_draw(self, q: LowRankGaussian, x: Any, y: Any) -> Tensor:
        in_layers = {self._inside[key] for layer in self._layers for key in layer.parameters}
        weights = self._drawn(q, without=in_layers)
        std = {key: q.variance[name].sqrt() for key, name in self._inside.items() if name in in_layers}
        local = self.family.reparameterization == "local"
        with noise_in(self._layers, std, batch_size_of(y), local):
            named = {self._internal[name]: tensor for name, tensor in weights.items()}
            loss: Tensor = functional_call(self._data_loss, named, (x, y))
        return loss

    def _drawn(self, q: LowRankGaussian, without: set[str] = frozenset()) -> dict[str, Tensor]:  # type: ignore[assignment]
        """mean + F z₂ + √variance ⊙ z₁, without the last term for the names in `without`."""
        like = next(iter(q.mean.values()))
        center = q.center(torch.randn(q.rank, dtype=like.dtype, device=like.device))
        return {
            name: c if name in without else c + q.variance[name].sqrt() * torch.randn_like(q.variance[name])
            for name, c in center.items()
        }


class _DataLoss(nn.Module):
    """The data term as a module with the parameter names of the posterior, for `functional_call`."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.model, self.likelihood = posterior.model, posterior.likelihood
        self._posterior = (posterior,)  # not a submodule

    def forward(self, x: Any, y: Any) -> Tensor:
        """The mean negative log-likelihood at the current weights."""
        return self._posterior[0].data_loss(x, y)


def normal_of(parameters: Weights, names: list[str]) -> LowRankGaussian:
    """q with these parameters: N(mean, diag softplus(rho)² + F Fᵀ)."""
    variance = {name: functional.softplus(parameters[f"rho/{name}"]).square() for name in names}
    mean = {
        name: parameters[f"mean/{name}"]
        if f"mean/{name}" in parameters
        else parameters[f"mean/{_layer(name)}"].expand_as(variance[name])
        for name in names
    }
    factors = {name: parameters[f"factor/{name}"] for name in names if f"factor/{name}" in parameters}
    return LowRankGaussian(mean, variance, factors)


def inverse_softplus(std: float) -> float:
    """ρ with softplus(ρ) = std."""
    return float(torch.tensor(std, dtype=torch.float64, device="cpu").expm1().log()) if std < 30 else std


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or "model"

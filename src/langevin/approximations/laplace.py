"""The Laplace approximation: a normal distribution with the curvature of the posterior at its mode.

    q(w) = N(ŵ, T·Λ⁻¹),    Λ = N·F(ŵ) + P            F the Fisher of one example (mean over all data), P the prior's

F is the Gauss-Newton part of the Hessian, so Λ is positive definite; for a linear model with Gaussian noise it is the
Hessian, and q the posterior. F may be full, diagonal, or layer-wise Ā ⊗ G (K-FAC): with P = diag(p) over the columns of
[W b], Ã = P^{-1/2} Ā P^{-1/2} and eigenvectors V of Ã and of G, eigenvalues α and γ,

    Λ = (P^{1/2} ⊗ I)(N·Ã ⊗ G + I)(P^{1/2} ⊗ I),     W = Ŵ + V_G [Z / √(N γ αᵀ + 1)] V_Aᵀ P^{-1/2}

without damping, thanks to the prior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.approximations.base import APPROXIMATIONS, Approximation, count_weights
from langevin.approximations.distributions import (
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    WeightDistribution,
    Weights,
    split_like,
)
from langevin.core import random
from langevin.core.batches import Batches, batch_size_of
from langevin.core.likelihoods import sampled_labels
from langevin.core.objective import Objective
from langevin.core.outputs import call
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian
from langevin.preconditioners.fisher import fisher_diagonal, fisher_matrix
from langevin.preconditioners.kfac_statistics import hooked, preserved_buffers, second_moment, supported
from langevin.preconditioners.layers import Layer, find_layers

Batch = tuple[Any, Any]
FullPass = Callable[[], Iterator[Batch]]  # each call iterates over all data once


@APPROXIMATIONS.register
@dataclass(frozen=True)
class Laplace(Approximation):
    """N(mode, (N·F + prior precision)⁻¹) (MacKay 1992; K-FAC: Ritter, Botev & Barber 2018). For Gaussian priors.

    Predictions linearize the model (Immer, Korzepa & Bauer 2021) unless `predictive="sampled"`.

    `lv.fit(posterior, data, lv.Laplace(), init=mode)` takes no steps. Without `init` the mode is found by LBFGS, as in
    `lv.find_map`. The approximation is valid only at a mode, or close to one.

    Args:
        structure: "diagonal", "kfac", or "full" for small models.
        fisher: "exact" (expectation over labels), "mc" (one sampled label) or "empirical" (training labels).
        temperature: T; 1 is the Bayes posterior.
        predictive: "linearized", the model's outputs linearized in the weights about the mode, f(x, ŵ) + J(x)(w − ŵ),
            which is the model whose curvature F is; or "sampled", the network itself at draws of w, which are often far
            outside the region where it fits the data.
        max_parameters: the largest number of weights for which the full matrix is computed.
        layers: "all", or "last": the weights before the last linear layer stay at the mode.
        prior_scale: "given", or "marginal": all standard deviations of the prior are multiplied by the factor that
            maximizes the marginal likelihood (MacKay 1992), and the mode is found anew, in turns; at a mode that is
            given by `init`, the factor alone. `fit.trace("prior_scale")` is the factor, and
            `fit.trace("log_marginal_likelihood")` what it reached, an estimate of log p(data).
    """

    structure: str = "kfac"
    fisher: str = "exact"
    temperature: float = 1.0
    predictive: str = "linearized"
    max_parameters: int = 5000
    layers: str = "all"
    prior_scale: str = "given"
    default_draws: ClassVar[int] = 100
    takes_steps: ClassVar[bool] = False
    citation: ClassVar[str] = """@inproceedings{ritter2018scalable,
  title={A scalable {L}aplace approximation for neural networks},
  author={Ritter, Hippolyt and Botev, Aleksandar and Barber, David},
  booktitle={International Conference on Learning Representations}, year={2018}}
@inproceedings{immer2021improving,
  title={Improving predictions of {B}ayesian neural nets via local linearization},
  author={Immer, Alexander and Korzepa, Maciej and Bauer, Matthias},
  booktitle={International Conference on Artificial Intelligence and Statistics}, pages={703--711}, year={2021}}"""

    @property
    def linearized(self) -> bool:
        """Whether predictions linearize the model about the mode."""
        return self.predictive == "linearized"

    def __post_init__(self) -> None:
        if self.structure not in _STRUCTURES or self.fisher not in ("exact", "mc", "empirical"):
            raise ValueError(
                f"Laplace({self.structure!r}, fisher={self.fisher!r}): the structure is one of "
                f'{", ".join(_STRUCTURES)}, the Fisher "exact", "mc" or "empirical". Of the last layer alone: '
                f'Laplace("kfac", layers="last").'
            )
        if self.predictive not in ("linearized", "sampled"):
            raise ValueError(f'Laplace(predictive={self.predictive!r}): choose "linearized" or "sampled".')
        if self.predictive == "linearized" and self.fisher == "empirical":
            raise ValueError(
                'Laplace(fisher="empirical"): the linearized predictive goes with the generalized Gauss-Newton matrix, '
                'which the empirical Fisher is not. Leave out fisher=…, or write predictive="sampled".'
            )
        if self.layers not in ("all", "last"):
            raise ValueError(f'Laplace(layers={self.layers!r}): choose "all" or "last".')
        if self.prior_scale not in ("given", "marginal"):
            raise ValueError(f'Laplace(prior_scale={self.prior_scale!r}): choose "given" or "marginal".')
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"Laplace(temperature={self.temperature}): must be positive; 1 is the Bayes posterior.")

    def objective(self, posterior: Posterior) -> Objective:
        """The posterior's loss, whose minimum is the mode."""
        return posterior

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """Only Gaussian priors are supported, and the full matrix only for small models."""
        for name, prior in posterior.priors().items():
            if type(prior) is not Gaussian:
                raise ValueError(
                    f"The Laplace approximation uses the curvature of the log-prior, which is constant for Gaussian "
                    f"priors only; {name!r} has {prior!r}. Use lv.priors.Gaussian(std), or lv.MeanField()."
                )
        if self.structure == "full" and count_weights(posterior) > self.max_parameters:
            raise ValueError(
                f"The full matrix of {count_weights(posterior):,} weights is above the limit of max_parameters="
                f'{self.max_parameters:,}. Use structure="kfac" or "diagonal", or sample a few layers: '
                f"Posterior(…, sampled='head.*')."
            )

    def tensors(self, posterior: Posterior, batches: Batches, batch_size: int) -> dict[str, Tensor]:
        """The tensors that define q at the posterior's current weights, computed in a pass over the data."""
        device = next(posterior.parameters()).device

        def full_pass() -> Iterator[Batch]:
            return (tree_map(lambda t: t.to(device), batch) for batch in batches.full_pass(batch_size))

        mean = {f"mean/{name}": p.detach().clone() for name, p in posterior.trainable_parameters().items()}
        return mean | _STRUCTURES[self.structure](self, posterior, full_pass)

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """q from the stored tensors."""
        last = snapshots[-1]
        mean = {name: last[f"mean/{name}"] for name in names}
        variance = {name: last[f"variance/{name}"] for name in names if f"variance/{name}" in last}
        if "precision_root" in last:
            return FullGaussian(mean, last["precision_root"])
        blocks = {
            key.removeprefix("scales/"): tuple(
                last[f"{part}/{key.removeprefix('scales/')}"]
                for part in ("output_vectors", "scales", "input_vectors", "prior_root")
            )
            for key in last
            if key.startswith("scales/")
        }
        return KroneckerGaussian(mean, variance, blocks) if blocks else LowRankGaussian(mean, variance)


def _precisions(posterior: Posterior) -> dict[str, float]:
    """The prior precision of each parameter; `check` ensures that all priors are Gaussian."""
    return {name: float(prior.std**-2) for name, prior in posterior.priors().items()}  # type: ignore[attr-defined]


def _weighted(posterior: Posterior, full_pass: FullPass) -> Iterator[tuple[int, float, Batch]]:
    """Batches with their numbers and their weights in the sum over all data: a mean over a batch times its size."""
    for number, batch in enumerate(full_pass()):
        yield number, posterior.weight * batch_size_of(batch[1]), batch


def _diagonal(method: Laplace, posterior: Posterior, full_pass: FullPass) -> dict[str, Tensor]:
    return _variances(method, posterior, full_pass, list(posterior.trainable_parameters()))


def _variances(method: Laplace, posterior: Posterior, full_pass: FullPass, names: list[str]) -> dict[str, Tensor]:
    """T/(N Fᵢᵢ + P) of the parameters of these names."""
    params = {name: p for name, p in posterior.trainable_parameters().items() if name in names}
    curvature = sum(
        weight * fisher_diagonal(posterior, list(params.values()), batch, method.fisher, number)
        for number, weight, batch in _weighted(posterior, full_pass)
    )
    assert isinstance(curvature, Tensor)
    prior = _precisions(posterior)
    own = zip(params, split_like(curvature, params), strict=True)
    return {f"variance/{name}": method.temperature / (c + prior[name]) for name, c in own}


def _full(method: Laplace, posterior: Posterior, full_pass: FullPass) -> dict[str, Tensor]:
    params = posterior.trainable_parameters()
    curvature = sum(
        weight * fisher_matrix(posterior, list(params.values()), batch, method.fisher, number).double()
        for number, weight, batch in _weighted(posterior, full_pass)
    )
    assert isinstance(curvature, Tensor)
    prior = torch.cat([curvature.new_full((params[n].numel(),), p) for n, p in _precisions(posterior).items()])
    precision = (curvature + prior.diag()) / method.temperature
    return {"precision_root": torch.linalg.cholesky(precision).to(next(iter(params.values())).dtype)}


def _kfac(method: Laplace, posterior: Posterior, full_pass: FullPass) -> dict[str, Tensor]:
    params = posterior.trainable_parameters()
    with warnings.catch_warnings():  # about uncovered parameters, for which the diagonal is used here
        warnings.simplefilter("ignore")
        layers = find_layers(posterior, list(params.values()), "K-FAC", supported, 1.0)
    sums: dict[Layer, tuple[Tensor, Tensor]] = {}
    for number, batch in enumerate(full_pass()):
        for layer, (a, g) in _factors(method, posterior, layers, batch, number).items():
            sums[layer] = (sums[layer][0] + a, sums[layer][1] + g) if layer in sums else (a, g)
    prior = _precisions(posterior)
    names = {id(p): name for name, p in params.items()}
    found: dict[str, Tensor] = {}
    for layer, (a, g) in sums.items():
        columns = [a.new_full((layer.weight[0].numel(),), prior[names[id(layer.weight)]])]
        columns += [] if layer.bias is None else [a.new_full((1,), prior[names[id(layer.bias)]])]
        root = torch.cat(columns).rsqrt()
        alpha, input_vectors = torch.linalg.eigh(a / posterior.num_data * root * root[:, None])
        gamma, output_vectors = torch.linalg.eigh(g / posterior.num_data)
        curvature = posterior.num_data * posterior.weight * gamma.clamp_min(0)[:, None] * alpha.clamp_min(0)
        block = {
            "output_vectors": output_vectors,
            "scales": (method.temperature / (curvature + 1)).sqrt(),
            "input_vectors": input_vectors,
            "prior_root": root,
        }
        key = names[id(layer.weight)].removesuffix("weight").removesuffix(".")
        found |= {f"{part}/{key}": tensor.to(layer.weight.dtype) for part, tensor in block.items()}
    covered = {names[id(p)] for layer in sums for p in layer.parameters}
    rest = [name for name in params if name not in covered]
    return found | (_variances(method, posterior, full_pass, rest) if rest else {})


def _factors(
    method: Laplace, posterior: Posterior, layers: list[Layer], batch: Batch, number: int
) -> dict[Layer, tuple[Tensor, Tensor]]:
    """Sums over the examples of a batch of Σ_positions a aᵀ and of mean_positions Σ_k δ_k δ_kᵀ.

    δ_k is the k-th column of a root of the output's Fisher, backpropagated to the layer.
    """
    seen: dict[Layer, tuple[Tensor, Tensor]] = {}

    def see(layer: Layer, a: Tensor, s: Tensor) -> None:
        if layer in seen:
            raise ValueError(f"Layer {layer.name!r} is used twice in a pass; K-FAC assumes one use. Use 'diagonal'.")
        seen[layer] = a.detach(), s

    x, y = batch
    with torch.enable_grad(), hooked(layers, see), preserved_buffers(posterior.model):
        output = call(posterior.model, x)
    used = list(seen)
    sums: dict[Layer, tuple[Tensor, Tensor]] = {}
    for column in _columns(method, posterior, output, y, number):
        deltas = torch.autograd.grad(
            output, [seen[layer][1] for layer in used], column, retain_graph=True, materialize_grads=True
        )
        for layer, delta in zip(used, deltas, strict=True):
            rows = layer.output_rows(delta)
            g = second_moment(rows.double()) / rows.shape[1]
            if layer in sums:
                sums[layer] = sums[layer][0], sums[layer][1] + g
            else:
                a = layer.input_rows(seen[layer][0]).double()
                a = a if layer.bias is None else torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
                sums[layer] = second_moment(a), g
    return sums


def _columns(method: Laplace, posterior: Posterior, output: Tensor, y: Any, number: int) -> Iterator[Tensor]:
    """Vectors over the outputs whose outer products sum to the output's Fisher (or an estimate of it)."""
    likelihood: Any = posterior.likelihood
    if method.fisher == "exact":
        if not hasattr(likelihood, "output_fisher"):
            raise ValueError(f'{likelihood!r} has no output_fisher(output); write fisher="mc" or "empirical".')
        values, vectors = torch.linalg.eigh(likelihood.output_fisher(output.detach()).double())
        roots = (vectors * values.clamp_min(0).sqrt()[:, None, :]).to(output.dtype)
        yield from (roots[:, :, k].reshape(output.shape) for k in range(roots.shape[2]))
        return
    if method.fisher == "mc":
        source = random.Source(seed=0, chain=0, step=number, stream=random.Stream.LABELS)
        y = sampled_labels(likelihood, output.detach(), source)
    at = output.detach().requires_grad_()
    yield torch.autograd.grad(-likelihood.log_prob(at, y).sum(), at)[0]


_STRUCTURES = {"diagonal": _diagonal, "kfac": _kfac, "full": _full}

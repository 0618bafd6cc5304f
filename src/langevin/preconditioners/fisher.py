"""The full Fisher information: A = G⁻¹ with G = F(θ) + δI.

    F(θ) = mean over M inputs of E_{y ∼ p(·|x,θ)}[∇log p ∇log pᵀ]

The M inputs are a separate random subset of the data, independent of the gradient's batch. G = L Lᵀ is factored once
and reused until the next refresh: A g = L⁻ᵀL⁻¹g, A^{1/2}η = L⁻ᵀη. A depends on θ, so the target of the Langevin update
depends on the correction Γ:

    "as-printed"   Γ = 0                                          no closed form; e^{−U/T} G in one dimension
    "jeffreys"     Γᵢ = Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ + ½ (G⁻¹ ∇log det G)ᵢ        e^{−U/T} det G^{1/2}; needs M = N: one G(θ)
    "posterior"    Γᵢ = Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ                              e^{−U/T}, for every M

with ∂ⱼG⁻¹ = −G⁻¹ (∂ⱼG) G⁻¹ and ∂ⱼ log det G = tr(G⁻¹ ∂ⱼG) by automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.batches import Batches, as_batches
from langevin.core.likelihoods import sampled_labels
from langevin.core.outputs import call
from langevin.core.posterior import Posterior
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked, new_weight

_DIFFERENTIABLE = 300  # maximum number of parameters for ∂G, an array of P³ numbers


@PRECONDITIONERS.register
class Fisher(Preconditioner):
    """A = (F + δI)⁻¹ over all parameters.

    Args:
        kind: `"exact"` (expectation over labels), `"mc"` (one sampled label), `"empirical"` (training labels) or
            `"covariance"` (of the gradients of the training labels).
        damping: δ.
        batch_size: M.
        average: weight of the previous F at lr 0.001, in general average^(lr/0.001), bias-corrected; 0 for none (in the
            paper 0.95).
        interval: steps between refreshes.
        target: which Γ is added, see above. All but `"as-printed"` need the exact Fisher at every step.
        max_parameters: the largest number of parameters for which the matrix is computed.
    """

    def __init__(
        self,
        kind: Literal["exact", "mc", "empirical", "covariance"] = "exact",
        *,
        damping: float = 1e-3,
        batch_size: int = 1024,
        average: float = 0.0,
        interval: int = 1,
        target: Literal["as-printed", "jeffreys", "posterior"] = "as-printed",
        max_parameters: int = 5000,
    ) -> None:
        self.kind, self.damping, self.batch_size, self.average = kind, damping, batch_size, average
        self.interval, self.target, self.max_parameters = interval, target, max_parameters
        checked(
            self,
            damping=(damping, damping > 0, "positive, such as 1e-3"),
            batch_size=(batch_size, batch_size >= 1, "at least 1"),
            average=(average, 0 <= average < 1, "in [0, 1), such as 0.95, or 0 for none"),
            interval=(interval, interval >= 1, "at least 1"),
        )
        if kind not in _KINDS or target not in _DRIFTS:
            raise ValueError(
                f"Fisher(kind={kind!r}, target={target!r}): kind must be one of {list(_KINDS)}, target one of "
                f"{list(_DRIFTS)}."
            )
        if target != "as-printed" and (kind != "exact" or average > 0 or interval > 1):
            raise ValueError(
                f"target={target!r} needs the metric as a differentiable function of θ: kind='exact', "
                f"average=0, interval=1; given kind={kind!r}, average={average}, interval={interval}. Or use "
                f"target='as-printed' and freeze the metric after burn-in: then the posterior is the target."
            )
        self._fisher, self._extra = _KINDS[kind], _DRIFTS[target]
        self._view: _View | None = None

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:
        """Represent the model as a function of θ; the data are for the Fisher's batches."""
        count = sum(p.numel() for p in params)
        if count > self.max_parameters:
            raise ValueError(
                f"The full Fisher of {count:,} parameters takes {count**2 * params[0].element_size() / 1e9:,.1f} GB "
                f"(and as much for its factor); the limit is max_parameters={self.max_parameters:,}. Use lv.KSGLD, "
                f"lv.BNPSGLD or lv.pSGLD, or sample a few layers: Posterior(…, sampled='head.*')."
            )
        if self.target != "as-printed" and count > _DIFFERENTIABLE:
            raise ValueError(
                f"target={self.target!r} differentiates the metric, {count:,}³ numbers; the limit is {_DIFFERENTIABLE} "
                f"parameters. Use target='as-printed' and freeze the metric after burn-in (sample() does): with a "
                f"constant metric the target is the posterior."
            )
        if data is None:
            raise ValueError("The Fisher needs data for its own batches: call sampler.bind(posterior, (x, y)).")
        self._view = _View(posterior, list(params), data)
        if self.target == "jeffreys" and self.batch_size < posterior.num_data:
            raise ValueError(
                f"target='jeffreys' is e^(−U/T) det G^½ with one G(θ), that of all {posterior.num_data:,} data; a new "
                f"batch of {self.batch_size:,} in every step has no such target. Write batch_size="
                f"{posterior.num_data}, or target='posterior', which any batch size has."
            )

    def unbind(self) -> None:
        """Detach from the model."""
        self._view = None

    def freezable(self) -> bool:
        """Not with the Jeffreys factor, which is the metric's dependence on θ."""
        return self.target != "jeffreys"

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """F on a fresh batch, its moving average, and the factor L."""
        view = self._seeing(params)
        if group["step"] % self.interval != 0:
            return
        fisher = self._fisher(view, view.flat(), view.batch(self.batch_size, group), group)
        known = state[params[0]]
        if self.average > 0:
            keep = self.average ** (group["lr"] / 1e-3)
            count = known["updates"] = known.get("updates", 0) + 1
            old = known.get("fisher", fisher)
            fisher = known["fisher"] = old + new_weight(keep, count) * (fisher - old)
        # contiguous, as after loading from a file: the layout affects rounding
        known["cholesky"] = _cholesky(fisher, self.damping).contiguous()

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """L⁻ᵀL⁻¹ g."""
        g = torch.cat([g.flatten() for g in grads]).unsqueeze(1)
        return _split(torch.cholesky_solve(g, state[params[0]]["cholesky"]).squeeze(1), params)

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """L⁻ᵀ η."""
        eta = torch.cat([eta.flatten() for eta in normals]).unsqueeze(1)
        root = torch.linalg.solve_triangular(state[params[0]]["cholesky"].mT, eta, upper=True)
        return _split(root.squeeze(1), params)

    def divergence(self, state: State, group: Group, params: list[Tensor]) -> list[Tensor] | None:
        """Γ of the target."""
        if self._extra is None:
            return None
        view = self._seeing(params)
        batch = view.batch(self.batch_size, group)
        theta = view.flat()

        def slope(direction: Tensor) -> Tensor:
            along: Tensor = jvp(lambda at: self._fisher(view, at, batch, group), (theta,), (direction,))[1]
            return along

        slopes = vmap(slope, chunk_size=32)(
            torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        )  # [j, i, k]: ∂ⱼG_ik
        inverse = torch.cholesky_inverse(state[params[0]]["cholesky"])
        return _split(self._extra(inverse, slopes), params)

    def _seeing(self, params: list[Tensor]) -> _View:
        if self._view is None:
            raise ValueError("The Fisher is not bound to model and data: call sampler.bind(posterior, (x, y)) first.")
        if [id(p) for p in params] != [id(p) for p in self._view.params]:
            raise ValueError(
                "The full Fisher needs all parameters in one parameter group, each with a gradient at every step."
            )
        return self._view


@torch.no_grad()
def fisher_matrix(
    posterior: Posterior, params: Sequence[Tensor], batch: tuple[Any, Any], kind: str, step: int
) -> Tensor:
    """F at the current values of the parameters, the mean over a batch; `step` seeds the sampled labels."""
    view = _View(posterior, list(params), batch)
    return _KINDS[kind](view, view.flat(), batch, {"seed": 0, "chain": 0, "step": step})


@torch.no_grad()
def fisher_diagonal(
    posterior: Posterior, params: Sequence[Tensor], batch: tuple[Any, Any], kind: str, step: int
) -> Tensor:
    """The diagonal of `fisher_matrix`, without computing the matrix."""
    view = _View(posterior, list(params), batch)
    if kind == "exact":
        jacobian, weighted = _jacobians(view, view.flat(), batch)
        return (jacobian * weighted).sum((0, 1)) / len(jacobian)
    if kind == "mc":
        batch = _relabelled(view, batch, {"seed": 0, "chain": 0, "step": step})
    return _gradients(view, view.flat(), batch).square().mean(0)


class _Pointwise(nn.Module):
    """Model and likelihood with the parameter names of the posterior: x ↦ output, or (x, y) ↦ log p(y|x)."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.model, self.likelihood = posterior.model, posterior.likelihood

    def forward(self, x: Any, y: Any = None) -> Tensor:
        """For one example."""
        x = tree_map(lambda t: t.unsqueeze(0), x)
        output: Tensor = call(self.model, x)
        if y is None:
            return output.flatten()
        log_prob: Tensor = self.likelihood.log_prob(output, tree_map(lambda t: t.unsqueeze(0), y)).squeeze(0)
        return log_prob


class _View:
    """The posterior as a function of one flat vector θ."""

    def __init__(self, posterior: Posterior, params: list[Tensor], data: Any) -> None:
        self.posterior, self.params = posterior, params
        self.pointwise = _Pointwise(posterior)
        names = {id(p): name for name, p in self.pointwise.named_parameters()}
        self.names = [names[id(p)] for p in params]
        self.batches = data if isinstance(data, Batches) else as_batches(data, 1, 0, params[0].device)

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.params])

    def batch(self, size: int, group: Group) -> tuple[Any, Any]:
        """The random subset for the Fisher at this step."""
        assert self.batches.num_data is not None
        where = {name: group[name] for name in ("seed", "chain", "step")}
        subset = random.random_subset(self.batches.num_data, size, stream=random.Stream.FISHER, **where)
        device = self.params[0].device
        x, y = tree_map(lambda t: t.to(device), self.batches.take(subset))
        return x, y

    def each(self, theta: Tensor, *example: Any) -> Tensor:
        """The output (for x) or log p (for x, y) of one example at θ."""
        weights = dict(zip(self.names, _split(theta, self.params), strict=True))
        result: Tensor = functional_call(self.pointwise, weights, example)
        return result


def _exact(view: _View, theta: Tensor, batch: tuple[Any, Any], group: Group) -> Tensor:
    """Jᵀ S J / M, J the outputs' Jacobian and S their Fisher."""
    jacobian, weighted = _jacobians(view, theta, batch)
    return jacobian.flatten(0, 1).T @ weighted.flatten(0, 1) / len(jacobian)


def _sampled(view: _View, theta: Tensor, batch: tuple[Any, Any], group: Group) -> Tensor:
    return _empirical(view, theta, _relabelled(view, batch, group), group)


def _empirical(view: _View, theta: Tensor, batch: tuple[Any, Any], group: Group) -> Tensor:
    rows = _gradients(view, theta, batch)
    return rows.T @ rows / len(rows)


def _covariance(view: _View, theta: Tensor, batch: tuple[Any, Any], group: Group) -> Tensor:
    rows = _gradients(view, theta, batch)
    rows = rows - rows.mean(0)
    return rows.T @ rows / len(rows)


def _jacobians(view: _View, theta: Tensor, batch: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    """J and S J, both (M, K, P)."""
    likelihood = view.posterior.likelihood
    if not hasattr(likelihood, "output_fisher") or any(name.startswith("likelihood.") for name in view.names):
        raise ValueError(
            f"The exact Fisher needs a likelihood with output_fisher(output) and no sampled parameters; given "
            f"{likelihood!r}. Use lv.preconditioners.Fisher(kind='mc'), or lv.Laplace('kfac', fisher='mc')."
        )
    x = batch[0]
    outputs = vmap(view.each, (None, 0))(theta, x)  # (M, K)
    jacobian: Tensor = vmap(jacrev(view.each), (None, 0))(theta, x)  # (M, K, P)
    return jacobian, likelihood.output_fisher(outputs) @ jacobian


def _relabelled(view: _View, batch: tuple[Any, Any], group: Group) -> tuple[Any, Any]:
    """The inputs, with labels sampled from the model."""
    output = call(view.posterior.model, batch[0])
    source = random.Source(group["seed"], group["chain"], group["step"], random.Stream.LABELS)
    return batch[0], sampled_labels(view.posterior.likelihood, output, source)


def _gradients(view: _View, theta: Tensor, batch: tuple[Any, Any]) -> Tensor:
    """∇log p of each example, (M, P)."""
    rows: Tensor = vmap(grad(view.each), (None, 0, 0))(theta, *batch)
    return rows


def _cholesky(fisher: Tensor, damping: float) -> Tensor:
    """The factor of F + δI; if rounding made F indefinite by more than δ, its negative eigenvalues count as 0."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(
        fisher + damping * torch.eye(len(fisher), dtype=fisher.dtype, device=fisher.device)
    )
    if not failed:
        return lower
    if not bool(fisher.isfinite().all()):
        raise FloatingPointError(
            f"The Fisher is not finite, so it can't be inverted. Lower lr, raise damping={damping:g}, or look for data "
            f"that are not finite."
        )
    values, vectors = torch.linalg.eigh(fisher.double())
    root = vectors * (values.clamp_min(0) + damping).sqrt()
    lower = torch.linalg.qr(root.T).R.T.to(fisher)  # the signs of its columns do not matter
    return lower


def _to_posterior(inverse: Tensor, slopes: Tensor) -> Tensor:
    """Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ = −(G⁻¹ Σⱼ (∂ⱼG) G⁻¹eⱼ)ᵢ."""
    return -inverse @ torch.einsum("jik,kj->i", slopes, inverse)


def _to_jeffreys(inverse: Tensor, slopes: Tensor) -> Tensor:
    """The same, plus ½ G⁻¹ ∇log det G."""
    return _to_posterior(inverse, slopes) + 0.5 * inverse @ torch.einsum("ik,jik->j", inverse, slopes)


def _split(flat: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [p.numel() for p in params])
    return [part.reshape(p.shape) for part, p in zip(parts, params, strict=True)]


_KINDS = {"exact": _exact, "mc": _sampled, "empirical": _empirical, "covariance": _covariance}
_DRIFTS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "as-printed": None,
    "jeffreys": _to_jeffreys,
    "posterior": _to_posterior,
}

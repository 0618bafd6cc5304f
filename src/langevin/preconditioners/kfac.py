"""Kronecker-factored approximate curvature (Martens & Grosse 2015; convolutions: Grosse & Martens 2016).

For a layer s = W a, a with a 1 appended if there is a bias, δ = ∂(−log p(ŷ|x))/∂s per example:

    Ā = E[Σ_positions a aᵀ],   G = E[mean_positions δ δᵀ]                      F ≈ Ā ⊗ G
    π = √(tr Ā·dim G / (tr G·dim Ā)),   Ā_γ = Ā + π√γ I,   G_γ = G + (√γ/π) I
    A g = G_γ⁻¹ ∇W Ā_γ⁻¹,   A^{1/2} η = L_G⁻ᵀ Z L_A⁻¹                          Ā_γ = L_A L_Aᵀ, G_γ = L_G L_Gᵀ

With triangular factors, which need half the arithmetic of dense ones, drift and noise share their last two products:

    −ε A g + c A^{1/2} η = L_G⁻ᵀ (−ε L_G⁻¹ ∇W L_A⁻ᵀ + c Z) L_A⁻¹

ŷ is sampled from the model (then F is the Fisher, and needs an extra forward and backward pass, which does not change
`p.grad`) or is the training label (empirical, no extra pass). Like g, everything is on the scale of the mean over
examples: neither N nor the batch size enters.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from langevin.core import random
from langevin.core.likelihoods import sampled_labels
from langevin.core.posterior import Posterior
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked
from langevin.preconditioners.layers import Layer, find_layers, training_forward

Statistics = dict[Layer, tuple[Tensor, Tensor]]  # a and δ: (batch, positions, fan-in), (batch, positions, outputs)


@PRECONDITIONERS.register
class KFAC(Preconditioner):
    """A = (Ā ⊗ G)⁻¹, layer by layer, for linear and convolution layers (without groups).

    Args:
        damping: γ, on the scale of the mean gradient's curvature.
        average: weight of the previous value in the moving averages of Ā and G.
        fisher: labels `"sampled"` from the model or `"empirical"`, those of the training data.
        factor_interval: steps between updates of Ā and G.
        inverse_interval: steps between updates of their triangular factors, which are used to invert them.
        prior_precision: of a Gaussian prior, 1/std²; adds prior_precision/N to γ.
        noise_power: 0.5 for noise A^{1/2} η, which samples the posterior, or 1 for noise A η.
        uncovered: A of the parameters that no layer covers.
    """

    def __init__(
        self,
        damping: float = 1e-3,
        *,
        average: float = 0.95,
        fisher: Literal["sampled", "empirical"] = "sampled",
        factor_interval: int = 10,
        inverse_interval: int = 100,
        prior_precision: float = 0.0,
        noise_power: float = 0.5,
        uncovered: float = 1.0,
    ) -> None:
        self.damping, self.average, self.fisher = damping, average, fisher
        self.factor_interval, self.inverse_interval = factor_interval, inverse_interval
        self.prior_precision, self.noise_power, self.uncovered = prior_precision, noise_power, uncovered
        checked(
            self,
            damping=(damping, damping > 0, "positive, such as 1e-3"),
            average=(average, 0 <= average < 1, "in [0, 1), such as 0.95"),
            factor_interval=(factor_interval, factor_interval >= 1, "at least 1"),
            inverse_interval=(inverse_interval, inverse_interval >= 1, "at least 1"),
            prior_precision=(prior_precision, prior_precision >= 0, "0 or more"),
            uncovered=(uncovered, uncovered > 0, "positive, such as 1.0"),
            noise_power=(noise_power, noise_power in (0.5, 1), "0.5, or 1 for noise A η"),
        )
        if fisher not in _SOURCES:
            raise ValueError(f"KFAC(fisher={fisher!r}): fisher must be one of {list(_SOURCES)}.")
        self._source: _Source | None = None
        self._layers: list[Layer] = []
        self._statistics: Statistics | None = None

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:
        """Find the layers and hook into the model."""
        self.unbind()
        self._layers = find_layers(posterior, params, "K-FAC", supported, self.uncovered)
        self._source = _SOURCES[self.fisher](posterior, self._layers)

    def unbind(self) -> None:
        """Remove the hooks."""
        if self._source is not None:
            self._source.close()
        self._source, self._layers = None, []

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Moving averages of Ā and G, and triangular factors of the damped ones, each at its interval."""
        if self._source is None:
            raise ValueError("K-FAC is not bound to a model: call sampler.bind(posterior) before the first step.")
        layers = self._in(params)
        if not layers:  # no supported layer; bind() has warned
            return
        step = group["step"]
        if step % self.factor_interval == 0:
            if self._statistics is None:  # of the layers of all groups, before any of them is updated
                self._statistics = self._source.statistics(self._layers, group)
            for layer in layers:
                a, delta = self._statistics[layer]
                if layer.bias is not None:
                    a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
                _average(state[layer.weight], "input_factor", second_moment(a) / a.shape[0], self.average)
                positions = delta.shape[0] * delta.shape[1]
                _average(state[layer.weight], "output_factor", second_moment(delta) / positions, self.average)
        if step % self.inverse_interval == 0:
            for layer in layers:
                _factorise(state[layer.weight], self.damping + self.prior_precision / group["num_data"])

    def finish(self, step: int, frozen: bool) -> None:
        """Discard the mini-batch, and record the next one only if the factors are due."""
        self._statistics = None
        if self._source is not None:
            self._source.forget(record_next=not frozen and step % self.factor_interval == 0)

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """G_γ⁻¹ ∇W Ā_γ⁻¹."""
        return self._multiply(_whole, self.uncovered, state, params, grads)

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """L_G⁻ᵀ Z L_A⁻¹."""
        if self.noise_power == 1:
            return self.drift(state, group, params, normals)
        return self._multiply(_half, self.uncovered**0.5, state, params, normals)

    def move(
        self,
        state: State,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        normals: list[Tensor] | None,
        rate: float,
        spread: float,
    ) -> None:
        """θ ← θ + L_G⁻ᵀ (−rate L_G⁻¹ ∇W L_A⁻ᵀ + spread Z) L_A⁻¹."""
        if normals is None or self.noise_power == 1:
            super().move(state, group, params, grads, normals, rate, spread)
            return
        inner = self._multiply(_other_half, self.uncovered**0.5, state, params, grads)
        for x, z in zip(inner, normals, strict=True):
            x.mul_(-rate).add_(z, alpha=spread)
        torch._foreach_add_(params, self._multiply(_half, self.uncovered**0.5, state, params, inner))

    def _multiply(
        self,
        product: Callable[[Tensor, dict[str, Any]], Tensor],
        scalar: float,
        state: State,
        params: list[Tensor],
        vectors: list[Tensor],
    ) -> list[Tensor]:
        """`product` of every layer's block [W b]; uncovered parameters are multiplied by the scalar."""
        products = {id(p): v for p, v in zip(params, vectors, strict=True)}
        for layer in self._in(params):
            w = products[id(layer.weight)].flatten(1)
            b = None if layer.bias is None else products[id(layer.bias)]
            block = w if b is None else torch.cat([w, b.unsqueeze(1)], dim=1)
            block = product(block, state[layer.weight])
            products[id(layer.weight)] = block[:, : w.shape[1]].reshape(layer.weight.shape)
            if layer.bias is not None:
                products[id(layer.bias)] = block[:, -1]
        covered = {id(p) for layer in self._in(params) for p in layer.parameters}
        return [products[id(p)] if id(p) in covered else scalar * products[id(p)] for p in params]

    def _in(self, params: list[Tensor]) -> list[Layer]:
        present = {id(p) for p in params}
        inside = [layer for layer in self._layers if id(layer.weight) in present]
        for layer in inside:
            if not all(id(p) in present for p in layer.parameters):
                raise ValueError(f"K-FAC needs weight and bias of layer {layer.name!r} in the same parameter group.")
        return inside


def _factorise(known: dict[str, Any], damping: float) -> None:
    """Triangular factors of Ā + π√γ I and G + (√γ/π) I, computed in double precision."""
    factors = {side: known[f"{side}_factor"].to(torch.float64, copy=True) for side in ("input", "output")}
    mean = {side: float(factor.trace()) / len(factor) for side, factor in factors.items()}
    pi = (mean["input"] / mean["output"]) ** 0.5 if min(mean.values()) > 0 else 1.0
    shift = {"input": pi * damping**0.5, "output": damping**0.5 / pi}
    for side, factor in factors.items():
        factor.diagonal().add_(shift[side])
        lower, failed = torch.linalg.cholesky_ex(factor)
        if failed:  # averages in single precision can be indefinite by rounding, for which a tiny damping is too small
            factor.diagonal().add_(1e-6 * len(factor) * mean[side])
            lower = torch.linalg.cholesky(factor)
        known[f"{side}_lower"] = lower.to(known[f"{side}_factor"].dtype).contiguous()


def _whole(block: Tensor, known: dict[str, Any]) -> Tensor:
    """G_γ⁻¹ X Ā_γ⁻¹."""
    return _half(_other_half(block, known), known)


def _half(block: Tensor, known: dict[str, Any]) -> Tensor:
    """L_G⁻ᵀ X L_A⁻¹."""
    return _solve(_solve(block.T, known["output_lower"]).T, known["input_lower"])


def _other_half(block: Tensor, known: dict[str, Any]) -> Tensor:
    """L_G⁻¹ X L_A⁻ᵀ."""
    return _solve(_solve(block.T, known["output_lower"], transposed=True).T, known["input_lower"], transposed=True)


def _solve(block: Tensor, lower: Tensor, *, transposed: bool = False) -> Tensor:
    """X L⁻¹ or X L⁻ᵀ; solving from the right, with contiguous rows, takes half the time."""
    factor = lower.T if transposed else lower
    solution: Tensor = torch.linalg.solve_triangular(factor, block.contiguous(), upper=transposed, left=False)
    return solution


class _Source(ABC):
    """Computes a and δ; its hooks record only training forward passes with gradients enabled."""

    def __init__(self, posterior: Posterior, layers: list[Layer]) -> None:
        self.posterior = posterior
        self.mode = posterior.model.training
        self.recording = True
        self.seen: dict[Layer, tuple[Tensor, Tensor]] = {}
        self.handles: list[Any] = []

    @abstractmethod
    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        """a and δ of the last mini-batch."""

    def forget(self, record_next: bool) -> None:
        """Discard the mini-batch; record the next one or not."""
        self.recording, self.seen = record_next, {}

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def see(self, layer: Layer, a: Tensor, s: Tensor) -> None:
        """Record a use of a layer; a second use is refused."""
        if layer in self.seen:
            raise ValueError(
                f"Layer {layer.name!r} is used twice in a forward pass; K-FAC's factors assume a single use. "
                f"Use a separate layer for each, or lv.SGLD or lv.pSGLD."
            )
        self.seen[layer] = (a.detach(), s)


class _Sampled(_Source):
    """Labels sampled from the model, in an extra pass over the last mini-batch."""

    def __init__(self, posterior: Posterior, layers: list[Layer]) -> None:
        super().__init__(posterior, layers)
        self.batch: tuple[Any, Any] | None = None
        self.handles = [posterior.model.register_forward_pre_hook(self._remember, with_kwargs=True)]

    def forget(self, record_next: bool) -> None:
        super().forget(record_next)
        self.batch = None

    def _remember(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.recording and training_forward(module, self.mode):
            self.batch = (args, kwargs)

    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        if self.batch is None:
            raise ValueError(
                "K-FAC recorded no forward pass: call posterior.loss(x, y).backward() on the posterior that it is "
                "bound to, in the mode (model.train() or model.eval()) that the model had in bind()."
            )
        self.seen = {}
        args, kwargs = self.batch
        likelihood, model = self.posterior.likelihood, self.posterior.model
        with torch.enable_grad(), hooked(layers, self.see), preserved_buffers(model):
            output = model(*args, **kwargs)
            generator = random.generator(
                seed=group["seed"],
                chain=group["chain"],
                step=group["step"],
                stream=random.Stream.LABELS,
                device=output.device,
            )
            labels = sampled_labels(likelihood, output.detach(), generator)
            energy = -likelihood.log_prob(output, labels).sum()
            used = [layer for layer in layers if layer in self.seen]
            deltas = torch.autograd.grad(energy, [self.seen[layer][1] for layer in used], materialize_grads=True)
        inputs = [self.seen[layer][0] for layer in used]
        return _as_rows(used, inputs, deltas)


class _Empirical(_Source):
    """Training labels: a and δ are recorded in the forward and backward pass of the loss, one per step."""

    def __init__(self, posterior: Posterior, layers: list[Layer]) -> None:
        super().__init__(posterior, layers)
        self.deltas: dict[Layer, Tensor] = {}
        self.accumulating = False
        self.handles = [posterior.model.register_forward_pre_hook(self._begin)]
        self.handles += [layer.module.register_forward_hook(self._record(layer)) for layer in layers]

    def forget(self, record_next: bool) -> None:
        super().forget(record_next)
        self.deltas = {}

    def _begin(self, module: nn.Module, args: Any) -> None:
        self.on = self.recording and training_forward(module, self.mode)
        if self.on:
            self.accumulating = bool(self.deltas)
            self.seen, self.deltas = {}, {}

    def _record(self, layer: Layer) -> Callable[..., None]:
        def forward(module: nn.Module, args: Any, s: Tensor) -> None:
            if self.on:
                self.see(layer, args[0], s)
                s.register_hook(partial(self.deltas.__setitem__, layer))  # type: ignore[no-untyped-call]

        return forward

    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        used = [layer for layer in layers if layer in self.deltas]
        if len(used) < len(layers):
            raise ValueError("K-FAC recorded no backward pass of posterior.loss(x, y) through the model in bind().")
        if self.accumulating:
            raise ValueError(
                'With gradient accumulation the scale of δ is unknown: use fisher="sampled" (K-FAC then uses the '
                "last micro-batch)."
            )
        inputs = [self.seen[layer][0] for layer in used]
        # the loss is weight × mean over the batch: undo both
        deltas = [self.deltas[layer] * (len(a) / self.posterior.weight) for layer, a in zip(used, inputs, strict=True)]
        return _as_rows(used, inputs, deltas)


_SOURCES: dict[str, type[_Source]] = {"sampled": _Sampled, "empirical": _Empirical}


def supported(module: nn.Module) -> bool:
    """Whether all outputs share one Ā: no grouped convolution."""
    return getattr(module, "groups", 1) == 1


def _as_rows(layers: list[Layer], inputs: Sequence[Tensor], deltas: Sequence[Tensor]) -> Statistics:
    return {
        layer: (layer.input_rows(a), layer.output_rows(delta))
        for layer, a, delta in zip(layers, inputs, deltas, strict=True)
    }


def second_moment(rows: Tensor) -> Tensor:
    """Σ r rᵀ over batch and positions."""
    rows = rows.flatten(0, 1)
    return rows.T @ rows


def _average(known: dict[str, Any], name: str, value: Tensor, keep: float) -> None:
    known[name] = keep * known[name] + (1 - keep) * value if name in known else value


@contextlib.contextmanager
def hooked(layers: list[Layer], see: Callable[[Layer, Tensor, Tensor], None]) -> Iterator[None]:
    """Pass a and s of every layer to `see`; later layers get a copy of s, in case they modify it in place."""

    def hook(layer: Layer) -> Callable[..., Tensor]:
        def forward(module: nn.Module, args: Any, s: Tensor) -> Tensor:
            see(layer, args[0], s)
            return s.clone()

        return forward

    handles = [layer.module.register_forward_hook(hook(layer)) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers (running statistics) on exit."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)

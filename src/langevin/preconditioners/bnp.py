"""Batch-normalization preconditioning (Lange, Helfrich & Ye 2022): the effect of normalizing a layer's input, as A.

For a row [b; w] of bias and weights of a layer with inputs h ∈ R^m, running mean μ and biased variance σ² of h, n rows
of input in a batch, σ̃² = σ² + ε₁ max(σ²) + ε₂, q² = max(m/n, 1):

    P = (1/q) [[1, −μᵀ], [0, I]] diag(1, 1/σ̃)            A = P Pᵀ
    A g:        w: (g_w − μ g_b)/(q²σ̃²),   b: g_b/q² − Σⱼ μⱼ (new g_w)ⱼ
    A^{1/2} η:  w: η_w/(qσ̃),               b: η_b/q − Σⱼ μⱼ (new η_w)ⱼ

Without a bias μ = 0 and σ² is E[h²]. Convolutions: statistics per input channel over batch and positions, shared by all
taps of the kernel; m = c_in/groups · taps, n = batch × output positions. The network itself is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from langevin.core.posterior import Posterior
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked, new_weight
from langevin.preconditioners.layers import Layer, find_layers, training_forward


@PRECONDITIONERS.register
class BNP(Preconditioner):
    """A = P Pᵀ, row by row, for linear and convolution layers.

    Args:
        average: ρ, weight of the previous value in the (bias-corrected) running mean and variance.
        relative: ε₁.
        absolute: ε₂.
        uncovered: A of the parameters that no layer covers.
    """

    def __init__(
        self, average: float = 0.99, *, relative: float = 1e-2, absolute: float = 1e-4, uncovered: float = 1.0
    ) -> None:
        self.average, self.relative, self.absolute, self.uncovered = average, relative, absolute, uncovered
        checked(
            self,
            average=(average, 0 <= average < 1, "in [0, 1), such as 0.99"),
            relative=(relative, relative >= 0, "0 or more"),
            absolute=(absolute, absolute > 0, "positive, such as 1e-4"),
            uncovered=(uncovered, uncovered > 0, "positive, such as 1.0"),
        )
        self._layers: list[Layer] = []
        self._covered: set[int] = set()
        self._seen: dict[Layer, tuple[Tensor, Tensor, int]] = {}  # mean, variance, number of rows
        self._handles: list[Any] = []
        self._bound = False
        self._watching = True

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:
        """Find the layers and hook into their forward passes."""
        self.unbind()
        self._layers = find_layers(posterior, params, "BNP", lambda module: True, self.uncovered)
        watch = partial(self._watch, posterior.model.training)  # unlike a closure, copied with the model
        self._handles = [layer.module.register_forward_hook(partial(watch, layer)) for layer in self._layers]
        self._covered = {id(p) for layer in self._layers for p in layer.parameters}
        self._bound = True

    def unbind(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._layers, self._seen, self._handles, self._bound, self._covered = [], {}, [], False, set()

    def _watch(self, mode: bool, layer: Layer, module: nn.Module, args: Any, s: Tensor) -> None:
        if self._watching and training_forward(module, mode):
            h = args[0].detach()
            h = h.flatten(0, -2) if isinstance(module, nn.Linear) else h.transpose(0, 1).flatten(1).T
            if layer.bias is None:
                mean, variance = torch.zeros_like(h[0]), h.square().mean(0)
            else:
                variance, mean = torch.var_mean(h, 0, correction=0)
            self._seen[layer] = (mean, variance, s.numel() // len(layer.weight))

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Running averages of μ and σ²; q."""
        if not self._bound:
            raise ValueError("BNP is not bound to a model: call sampler.bind(posterior) before the first step.")
        for layer in self._in(params):
            if layer not in self._seen:
                raise ValueError(
                    f"BNP recorded no forward pass of layer {layer.name!r}: call posterior.loss(x, y).backward() on "
                    f"the posterior that it is bound to, in the mode (train or eval) that the model had in bind()."
                )
            mean, variance, rows = self._seen[layer]
            known = state[layer.weight]
            count = known["updates"] = known.get("updates", 0) + 1
            for name, value in (("mean", mean), ("variance", variance)):
                old = known.get(name, value)
                known[name] = old + new_weight(self.average, count) * (value - old)
            known["q"] = max(layer.weight[0].numel() / rows, 1.0) ** 0.5

    def finish(self, step: int, frozen: bool) -> None:
        """Discard the statistics of the mini-batch."""
        self._seen, self._watching = {}, not frozen

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """P Pᵀ g."""
        given = {id(p): g for p, g in zip(params, grads, strict=True)}
        products = {key: self.uncovered * g for key, g in given.items() if key not in self._covered}
        for layer in self._in(params):
            mean, variance, q = self._moments(state, layer)
            w, scale = given[id(layer.weight)], 1 / (q**2 * variance)
            if layer.bias is None:
                products[id(layer.weight)] = w * scale
                continue
            b = given[id(layer.bias)]
            w = torch.addcmul(w, b.reshape(-1, *[1] * (w.dim() - 1)), mean, value=-1).mul_(scale)
            products[id(layer.weight)] = w
            products[id(layer.bias)] = b / q**2 - _row_products(w, mean)
        return [products[id(p)] for p in params]

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """P η."""
        given = {id(p): eta for p, eta in zip(params, normals, strict=True)}
        products = {key: self.uncovered**0.5 * eta for key, eta in given.items() if key not in self._covered}
        for layer in self._in(params):
            mean, variance, q = self._moments(state, layer)
            w = given[id(layer.weight)] * (1 / (q * variance.sqrt()))
            products[id(layer.weight)] = w
            if layer.bias is not None:
                products[id(layer.bias)] = given[id(layer.bias)] / q - _row_products(w, mean)
        return [products[id(p)] for p in params]

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
        """θ ← θ + P (−rate Pᵀg + spread η), computed in the memory of η, without further allocations."""
        if normals is None:
            super().move(state, group, params, grads, normals, rate, spread)
            return
        given = {id(p): (g, eta) for p, g, eta in zip(params, grads, normals, strict=True)}
        for key, (g, eta) in given.items():
            if key not in self._covered:
                eta.mul_(spread * self.uncovered**0.5).add_(g, alpha=-rate * self.uncovered)
        for layer in self._in(params):
            mean, variance, q = self._moments(state, layer)
            g, w = given[id(layer.weight)]
            drift = -rate / (q**2 * variance)
            w.mul_(spread / (q * variance.sqrt())).addcmul_(g, drift)
            if layer.bias is not None:
                g, b = given[id(layer.bias)]
                w.addcmul_(g.reshape(-1, *[1] * (w.dim() - 1)), drift * mean, value=-1)
                b.mul_(spread / q).add_(g, alpha=-rate / q**2).sub_(_row_products(w, mean))
        torch._foreach_add_(params, normals)

    def _moments(self, state: State, layer: Layer) -> tuple[Tensor, Tensor, float]:
        """μ and σ̃², in shapes that broadcast against the weight, and q."""
        known = state[layer.weight]
        variance = known["variance"] + self.relative * known["variance"].max() + self.absolute
        groups = getattr(layer.module, "groups", 1)

        def as_weight(channels: Tensor) -> Tensor:
            rows = channels.reshape(groups, -1)
            if groups > 1:
                rows = rows.repeat_interleave(len(layer.weight) // groups, 0)
            return rows.reshape(*rows.shape, *[1] * (layer.weight.dim() - 2))

        return as_weight(known["mean"]), as_weight(variance), known["q"]

    def _in(self, params: list[Tensor]) -> list[Layer]:
        present = {id(p) for p in params}
        inside = [layer for layer in self._layers if id(layer.weight) in present]
        for layer in inside:
            if not all(id(p) in present for p in layer.parameters):
                raise ValueError(f"BNP needs weight and bias of layer {layer.name!r} in the same parameter group.")
        return inside


def _row_products(w: Tensor, mean: Tensor) -> Tensor:
    """Σⱼ μⱼ wⱼ over all but the first axis of w; μ has one row, or one for every row of w."""
    if len(mean) == 1:
        return w.flatten(1) @ mean.expand(1, *w.shape[1:]).flatten()
    return (mean * w).flatten(1).sum(1)

"""Kronecker-factored approximate curvature (Martens & Grosse 2015; convolutions: Grosse & Martens 2016).

For a layer s = W a, a with a 1 appended if there is a bias, δ = ∂(−log p(ŷ|x))/∂s per example:

    Ā = E[Σ_positions a aᵀ],   G = E[mean_positions δ δᵀ]                      F ≈ Ā ⊗ G
    π = √(tr Ā·dim G / (tr G·dim Ā)),   Ā_γ = Ā + π√γ I,   G_γ = G + (√γ/π) I
    A g = G_γ⁻¹ ∇W Ā_γ⁻¹,   A^{1/2} η = L_G⁻ᵀ Z L_A⁻¹                          Ā_γ = L_A L_Aᵀ, G_γ = L_G L_Gᵀ

With triangular factors, which need half the arithmetic of dense ones, drift and noise share their last two products:

    −ε A g + c A^{1/2} η = L_G⁻ᵀ (−ε L_G⁻¹ ∇W L_A⁻ᵀ + c Z) L_A⁻¹

The factors of wide layers are kept as low rank plus a multiple of the identity (`rank`, see `low_rank`): any constant
positive definite A has the same target, and products with it are cheap. Their roots R = M^{−1/2} are symmetric, and
stand in place of the triangular inverses.

ŷ is sampled from the model (then F is the Fisher, and needs an extra forward and backward pass, which does not change
`p.grad`) or is the training label (empirical, no extra pass). Like g, everything is on the scale of the mean over
examples: neither N nor the batch size enters.

A factor of rank below its dimension has directions of no curvature at all, in which A = 1/γ, and the first steps would
be lost there. So nothing moves before every factor has seen two rows (examples × positions) for each of its dimensions;
until then, and while lr rises over the next `warmup` steps, the factors are updated in every step and inverted often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from langevin.core.posterior import Posterior
from langevin.preconditioners.base import PRECONDITIONERS, Group, Preconditioner, State, checked, new_weight
from langevin.preconditioners.kfac_statistics import SOURCES, Source, Statistics, second_moment, supported
from langevin.preconditioners.layers import Layer, find_layers
from langevin.preconditioners.low_rank import InverseRoot, inverse_root


@PRECONDITIONERS.register
class KFAC(Preconditioner):
    """A = (Ā ⊗ G)⁻¹, layer by layer, for linear and convolution layers (without groups).

    Args:
        damping: γ, on the scale of the mean gradient's curvature.
        average: weight of the previous value in the (bias-corrected) moving averages of Ā and G; more where batches are
            so small that the average would not cover two rows for each dimension.
        fisher: labels `"sampled"` from the model or `"empirical"`, those of the training data.
        factor_interval: steps between updates of Ā and G.
        inverse_interval: steps between updates of their triangular factors, which are used to invert them.
        prior_precision: of a Gaussian prior, 1/std²; adds prior_precision/N to γ.
        noise_power: 0.5 for noise A^{1/2} η, which samples the posterior, or 1 for noise A η.
        rank: of the factors, for those of more than four times as many dimensions; None for the exact ones.
        examples: of a mini-batch, as many enter the factors with `fisher="sampled"`; None for all.
        uncovered: A of the parameters that no layer covers.
        warmup: steps in which lr rises from 0, once the factors have full rank; 0 to move from the first step.
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
        warmup: int = 50,
        rank: int | None = 64,
        examples: int | None = 128,
    ) -> None:
        self.damping, self.average, self.fisher, self.warmup = damping, average, fisher, warmup
        self.rank, self.examples = rank, examples
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
            warmup=(warmup, warmup >= 0, "0 or more, such as 50"),
            rank=(rank or 0, rank is None or rank >= 1, "1 or more, such as 64, or None for exact factors"),
            examples=(examples or 0, examples is None or examples >= 1, "1 or more, such as 128, or None for all"),
        )
        if fisher not in SOURCES:
            raise ValueError(f"KFAC(fisher={fisher!r}): fisher must be one of {list(SOURCES)}.")
        self._source: Source | None = None
        self._layers: list[Layer] = []
        self._statistics: Statistics | None = None
        self._learning: bool | None = None  # not known before the first step
        self._step = -1

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:
        """Find the layers and hook into the model."""
        self.unbind()
        self._layers = find_layers(posterior, params, "K-FAC", supported, self.uncovered)
        self._source = SOURCES[self.fisher](posterior, self._layers, self.examples)

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
        step, learning = group["step"], self._pace(state, layers) < 1
        if step != self._step:  # of this step, the first parameter group
            self._step, self._learning = step, False
        if learning or step % self.factor_interval == 0:
            if self._statistics is None:  # of the layers of all groups, before any of them is updated
                self._statistics = self._source.statistics(self._layers, group)
            for layer in layers:
                a, delta = self._statistics[layer]
                if layer.bias is not None:
                    a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
                self._average(state[layer.weight], a, delta)
        self._learning = bool(self._learning) or self._pace(state, layers) < 1
        for layer in layers:
            known = state[layer.weight]
            if step % self.inverse_interval == 0 or (learning and known["updates"] >= 1.25 * known.get("inverted", 0)):
                _factorise(known, self.damping + self.prior_precision / group["num_data"], self.rank)
                known["inverted"] = known["updates"]

    def _average(self, known: dict[str, Any], a: Tensor, delta: Tensor) -> None:
        """Bias-corrected averages of Ā and G, over two rows for each dimension at least."""
        count = known["updates"] = known.get("updates", 0) + 1
        rows = delta.shape[0] * delta.shape[1]
        factors = {"input_factor": second_moment(a) / a.shape[0], "output_factor": second_moment(delta) / rows}
        seen = known.get("seen", 0.0) + rows / (2 * max(len(factor) for factor in factors.values()))
        known["seen"] = min(seen, 1.0)
        for name, factor in factors.items():
            keep = max(self.average, 1 - rows / (2 * len(factor))) if self.warmup else self.average
            old = known.get(name, factor)
            known[name] = old + new_weight(keep, count) * (factor - old)
        if known["seen"] == 1:
            known["moves"] = known.get("moves", 0) + 1

    def pace(self, state: State, params: list[Tensor]) -> float:
        """0 before the factors have full rank, then n/warmup in the n-th step, at most 1."""
        return self._pace(state, self._in(params))

    def _pace(self, state: State, layers: list[Layer]) -> float:
        if not self.warmup:
            return 1.0
        return min((min(1.0, state[layer.weight].get("moves", 0) / self.warmup) for layer in layers), default=1.0)

    def finish(self, step: int, frozen: bool) -> None:
        """Discard the mini-batch, and record the next one only if the factors are due."""
        self._statistics = None
        if self._source is not None:
            due = self._learning is not False or step % self.factor_interval == 0
            self._source.forget(record_next=not frozen and due)

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


def _factorise(known: dict[str, Any], damping: float, rank: int | None) -> None:
    """Of Ā + π√γ I and G + (√γ/π) I the triangular factors, in double precision, or inverse roots of low rank."""
    averages = {side: known[f"{side}_factor"] for side in ("input", "output")}
    mean = {side: float(factor.trace()) / len(factor) for side, factor in averages.items()}
    pi = (mean["input"] / mean["output"]) ** 0.5 if min(mean.values()) > 0 else 1.0
    shift = {"input": pi * damping**0.5, "output": damping**0.5 / pi}
    for side, average in averages.items():
        if rank is not None and len(average) > 4 * rank:
            root = inverse_root(average, shift[side], rank, known.get(f"{side}_basis"))
            known |= {f"{side}_basis": root.basis, f"{side}_weights": root.weights, f"{side}_scale": root.scale}
            continue
        factor = average.to(torch.float64, copy=True)
        factor.diagonal().add_(shift[side])
        lower, failed = torch.linalg.cholesky_ex(factor)
        if failed:  # averages in single precision can be indefinite by rounding, for which a tiny damping is too small
            factor.diagonal().add_(1e-6 * len(factor) * mean[side])
            lower, failed = torch.linalg.cholesky_ex(factor)
        if failed:
            raise FloatingPointError(
                f"K-FAC: a factor can't be inverted at damping={damping:g}: it is not finite, or too far from positive "
                f"definite. Lower lr, or raise damping to {10 * damping:g}."
            )
        known[f"{side}_lower"] = lower.to(average.dtype).contiguous()


def _whole(block: Tensor, known: dict[str, Any]) -> Tensor:
    """G_γ⁻¹ X Ā_γ⁻¹."""
    return _half(_other_half(block, known), known)


def _half(block: Tensor, known: dict[str, Any]) -> Tensor:
    """L_G⁻ᵀ X L_A⁻¹."""
    return _times(_times(block.T, known, "output").T, known, "input")


def _other_half(block: Tensor, known: dict[str, Any]) -> Tensor:
    """L_G⁻¹ X L_A⁻ᵀ."""
    return _times(_times(block.T, known, "output", transposed=True).T, known, "input", transposed=True)


def _times(block: Tensor, known: dict[str, Any], side: str, *, transposed: bool = False) -> Tensor:
    """X R, or X L⁻¹, or X L⁻ᵀ."""
    if f"{side}_basis" in known:
        root = InverseRoot(*(known[f"{side}_{part}"] for part in ("basis", "weights", "scale")))
        return root.after(block.contiguous())
    return _solve(block, known[f"{side}_lower"], transposed=transposed)


def _solve(block: Tensor, lower: Tensor, *, transposed: bool = False) -> Tensor:
    """X L⁻¹ or X L⁻ᵀ; solving from the right, with contiguous rows, takes half the time."""
    factor = lower.T if transposed else lower
    solution: Tensor = torch.linalg.solve_triangular(factor, block.contiguous(), upper=transposed, left=False)
    return solution

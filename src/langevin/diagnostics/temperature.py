"""Two thermometers, to be compared with the target temperature T. Integration by parts under exp(−U/T) gives, for any
constant point a,

    virial      E[(θ−a)·∇U]/dim = T              N·mean((θ−a)·g)/dim, θ before the step, g = ∇Û/N
    gradient    E[‖∇U‖²]/E[tr ∇²U] = T           N·mean(g₁·g₂)/mean(zᵀ∇²Û z/N), g₁ and g₂ of independent mini-batches

and the same for the weights of each tensor, and along any fixed direction.

The virial one weighs all directions alike and settles as slowly as the softest. Its anchor a has to be independent of
the readings: the chain's own mean is not, while weights mix slowly, and reads too cold. So a is the mean of the other
chains. That is known at the end only, so while a chain runs its readings are about s, its own mean over the second
eighth of burn-in: stiff directions, in which a distant anchor would make the readings noisy, have settled by then, and
soft ones have hardly left the start, which is a constant (the reading of a direction that relaxes in time t is too cold
by at most 6 %, at t = 2 burn-ins).
For models that are not too large the sums of g in some windows of the run are kept too, and N (s−a)·g is added
afterwards. A single chain, a large model, and adapters of a frozen one are read about s: the windows would take many
times the memory of the adapters.

The gradient one needs no anchor. It weighs directions by their curvature, so it sees the stiff ones, which a large step
and mini-batch noise heat first, and settles fast. The two side by side distinguish hot stiff directions from cold soft
ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.core.statistics import Estimate, dot_of_difference, mean_and_error

_WINDOWS = 32  # when all are full, pairs are merged
_WINDOW_BYTES = 16 << 20  # of one chain; the sums of g of larger models are not kept
_ADAPTER_BYTES = 1 << 18  # the same where most weights are frozen, and memory counts in copies of the others


class Thermometer:
    """Reads N (θ−s)·g/dim of one chain, or of stacked ones along their first axis.

    State: s (where they are now, until `average` is called), the sums over windows of (θ−s)·g, by tensor, and of g, the
    mean of θ; the stiffest direction that a probe has found. `frozen` is the number of weights that are not sampled.
    """

    def __init__(self, params: Sequence[Tensor], num_data: int, stacked: bool, frozen: int = 0) -> None:
        self.anchor = [p.detach().clone() for p in params]
        self.averaged = 0
        self._stacked = stacked
        self._chains = len(params[0]) if stacked else 1
        device, sizes = params[0].device, [p.numel() // self._chains for p in params]
        self._sizes = torch.tensor(sizes, dtype=torch.float64, device="cpu").to(device)
        self._num_data = num_data
        self.readings = 0
        self.length = 1  # readings of a window
        self.stiffest: list[Tensor] = []  # the stiffest direction, once a probe has looked for it
        self.products: Tensor | None = None  # (chains, windows, tensors)
        self.slopes: list[Tensor] = []  # of each tensor (chains, windows, …)
        self.means: list[Tensor] = []  # of the weights over all readings, about which other chains are read
        if keeps_windows(sum(p.nbytes for p in params) // self._chains, frozen > sum(sizes)):
            self.products = torch.zeros(self._chains, _WINDOWS, len(params), dtype=torch.float64, device=device)
            self.slopes = [p.new_zeros(self._chains, _WINDOWS, *(p.shape[1:] if stacked else p.shape)) for p in params]
            self.means = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def average(self, params: Sequence[Tensor]) -> None:
        """Move s to the mean of the positions at which this was called."""
        self.averaged += 1
        torch._foreach_lerp_(self.anchor, [p.detach() for p in params], 1 / self.averaged)

    @torch.no_grad()
    def measure_each(self, params: Sequence[Tensor]) -> Tensor:
        """Current T̂ⱼ = N (θⱼ−sⱼ)·gⱼ/dimⱼ of every tensor j and chain, with gradients from `p.grad`; they are recorded.

        Integration by parts holds in every coordinate, so each T̂ⱼ is T on average. Tensors at different temperatures
        show what a mean over all weights hides.
        """
        window = self._next_window()
        rows = []
        for j, (p, s) in enumerate(zip(params, self.anchor, strict=True)):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            rows.append(dot_of_difference(p, s, gradient, self._chains))
            if self.slopes and p.grad is not None:
                self.slopes[j][:, window] += p.grad if self._stacked else p.grad[None]
        each = torch.stack(rows).double()
        if self.products is not None:
            self.products[:, window] += each.T
            torch._foreach_lerp_(self.means, [p.detach() for p in params], 1 / self.readings)
        return each * self._num_data / self._sizes[:, None]

    def measure(self, params: Sequence[Tensor]) -> Tensor:
        """Current T̂ of every chain, with gradients from `p.grad`."""
        return self.over_all(self.measure_each(params))

    def over_all(self, each: Tensor) -> Tensor:
        """The mean over all weights of the result of `measure_each`: one number per chain."""
        return (self._sizes / self._sizes.sum()) @ each

    def _next_window(self) -> int:
        """The window of the next reading; of full windows, pairs are merged."""
        window = self.readings // self.length
        self.readings += 1
        if window < _WINDOWS or self.products is None:
            return window
        for sums in (self.products, *self.slopes):
            merged = sums[:, 0::2] + sums[:, 1::2]
            sums.zero_()
            sums[:, : _WINDOWS // 2] = merged
        self.length *= 2
        return _WINDOWS // 2

    # what a checkpoint holds, chain by chain

    def tensors(self, index: int, names: Sequence[str]) -> dict[str, Tensor]:
        """The state of one of the chains."""
        found = {}
        for kind, tensors in self._vectors():
            for name, tensor in zip(names, tensors, strict=False):
                found[f"{kind}/{name}"] = tensor[index] if self._stacked else tensor
        if self.products is not None:
            used = -(-self.readings // self.length)
            found["virial/products"] = self.products[index, :used]
            found |= {f"virial/{name}": g[index, :used] for name, g in zip(names, self.slopes, strict=True)}
        return found

    def _vectors(self) -> tuple[tuple[str, list[Tensor]], ...]:
        return ("anchor", self.anchor), ("mean", self.means), ("stiffest", self.stiffest)

    def values(self) -> dict[str, int]:
        """The plain numbers of the state."""
        return {"averaged": self.averaged, "readings": self.readings, "length": self.length}

    @torch.no_grad()
    def restore(self, tensors: Sequence[Mapping[str, Tensor]], values: Mapping[str, int], names: Sequence[str]) -> None:
        """Continue from the states of all chains."""
        self.averaged, self.readings, self.length = values["averaged"], values["readings"], values["length"]
        if f"stiffest/{names[0]}" in tensors[0]:
            self.stiffest = [torch.zeros_like(s) for s in self.anchor]
        for index, saved in enumerate(tensors):
            for kind, own in self._vectors():
                for name, t in zip(names, own, strict=False):
                    (t[index] if self._stacked else t).copy_(saved[f"{kind}/{name}"])
            if self.products is not None:
                for sums, name in ((self.products, "products"), *zip(self.slopes, names, strict=True)):
                    part = saved[f"virial/{name}"]
                    sums[index, : len(part)] = part.to(sums)


def keeps_windows(size: int, frozen: bool = False) -> bool:
    """Whether the sums of g are kept of so many bytes of sampled weights, beside which most weights may be frozen."""
    return size * _WINDOWS <= (_ADAPTER_BYTES if frozen else _WINDOW_BYTES)


@dataclass(frozen=True)
class Windows:
    """What a chain's checkpoint says about its virial temperature; arrays by window."""

    own: dict[str, Tensor]  # s
    mean: dict[str, Tensor]  # of the weights
    products: Tensor  # (windows, tensors), sums of (θ−s)·g
    slopes: dict[str, Tensor]  # (windows, …), sums of g
    counts: Tensor  # readings in each window

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Mapping[str, int], names: Sequence[str]) -> Windows | None:
        """The windows in a checkpoint; None if it has none, or none that is full."""
        if "virial/products" not in tensors or values["readings"] < values["length"]:
            return None
        length, products = values["length"], tensors["virial/products"]
        counts = torch.full((len(products),), length, dtype=torch.float64, device="cpu")
        counts[-1] = values["readings"] - length * (len(products) - 1)
        return cls(
            own={name: tensors[f"anchor/{name}"] for name in names},
            mean={name: tensors[f"mean/{name}"] for name in names},
            products=products,
            slopes={name: tensors[f"virial/{name}"] for name in names},
            counts=counts,
        )

    def about(self, anchor: Mapping[str, Tensor], num_data: int) -> np.ndarray:
        """N·mean((θ−a)·g)/dim of every full window and tensor: (windows, tensors)."""
        columns = []
        for j, (name, slopes) in enumerate(self.slopes.items()):
            offset = (self.own[name].double() - anchor[name].double()).flatten()
            sums = self.products[:, j] + slopes.double().reshape(len(slopes), -1) @ offset
            columns.append(num_data * sums / (self.counts * offset.numel()))
        full = self.counts == self.counts[0]
        return torch.stack(columns, 1)[full].numpy()


def leave_one_out(chains: Mapping[int, Windows], num_data: int) -> dict[str, dict[int, list[float]]]:
    """Virial temperatures of each tensor, chain and window, about the mean of the other chains.

    Where each chain is in a mode of its own, 0 would be less noisy, by a factor of at most √2 (two chains). To choose
    by the estimated errors would bias: of two noisy readings the one whose error was underestimated would be taken.
    """
    names = list(next(iter(chains.values())).slopes)
    found: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    sums = {name: torch.stack([windows.mean[name].double() for windows in chains.values()]).sum(0) for name in names}
    for chain, windows in chains.items():
        anchor = {name: (sums[name] - windows.mean[name]) / (len(chains) - 1) for name in names}
        for name, column in zip(names, windows.about(anchor, num_data).T, strict=True):
            found[name][chain] = column.tolist()
    return found


def virial_temperature(*chains: Sequence[float]) -> Estimate:
    """The mean over chains of virial readings, with its standard error.

    The error of a temperature is in proportion to it, so a reading that happens to be low has an error that is too
    small as well. With the relative error r it is widened by 1 + 3r²: ± 2 errors of a χ²-distributed reading then
    covers 94 to 96 % up to r = 1/2 (without, 95 % at r = 0.1 and 86 % at 1/2).
    """
    found = mean_and_error(*chains)
    if not found.known or found.error == 0:
        return found
    relative = found.error / max(abs(found.mean), found.error)
    return Estimate(found.mean, found.error * (1 + 3 * relative**2))


def over_tensors(each: Mapping[str, Mapping[int, Sequence[float]]], sizes: Mapping[str, int]) -> dict[int, list[float]]:
    """The mean over all weights of temperatures of tensors."""
    total = sum(sizes[name] for name in each)
    chains = next(iter(each.values()))
    return {
        chain: np.sum([np.asarray(rows[chain]) * (sizes[name] / total) for name, rows in each.items()], axis=0).tolist()
        for chain in chains
    }


class Ratio(NamedTuple):
    """Readings of chains whose means' ratio is the temperature: N²g₁·g₂ and tr ∇²Û."""

    above: Mapping[int, Sequence[float]]
    below: Mapping[int, Sequence[float]]
    weights: int = 1  # that the gradients are of; 1 along a direction


def ratio_of_means(ratio: Ratio) -> Estimate:
    """mean(above)/mean(below) over chains, with its standard error to first order; NaN unless the latter is positive.

    The denominator has to be at least three of its own errors from 0. Of a Gaussian, ‖∇U‖² over so many weights has a
    relative variance of at least 2/weights: few readings that happen to agree have no smaller error.
    """
    chains = [np.array([ratio.above[c], ratio.below[c]]) for c in ratio.above]
    chains = [rows[:, np.isfinite(rows).all(0)] for rows in chains]
    chains = [rows for rows in chains if rows.size]
    if not chains:
        return Estimate(math.nan, math.nan)
    above = mean_and_error(*(rows[0].tolist() for rows in chains))
    below = mean_and_error(*(rows[1].tolist() for rows in chains))
    if not below.mean > 0 or below.mean < 3 * below.error:
        return Estimate(math.nan, math.nan)
    value = above.mean / below.mean
    deviations = mean_and_error(*(((rows[0] - value * rows[1]) / below.mean).tolist() for rows in chains))
    readings = sum(rows.shape[1] for rows in chains)
    return Estimate(value, max(deviations.error, abs(value) * math.sqrt(2 / (ratio.weights * readings))))

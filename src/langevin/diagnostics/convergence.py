"""Convergence of chains: effective sample sizes and rank-normalized R̂, of weights and of predictions.

Weights of a network are not identified (units can be permuted, ReLU layers rescaled), so chains that disagree about
weights may agree about every prediction: what matters is function space, log-probabilities on a probe set.

R̂, bulk and tail ESS are those of ArviZ (`langevin.diagnostics.rank_statistics`). In `langevin.core.statistics` are the
ESS to the first negative autocorrelation and the ESS by batch means, which the papers report and ArviZ does not have,
and the multivariate mESS.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.core import html
from langevin.core.statistics import batch_means_ess, effective_sample_size, mess_full
from langevin.diagnostics.rank_statistics import rank_statistics

_TOGETHER = 4096  # samples that are read at a time
_BLOCK_BYTES = 64 << 20  # of draws in memory at once
_COLUMNS = ("ess", "ess_batch", "ess_bulk", "ess_tail", "rhat")
_WORST = 5  # quantities that a notebook names
_FEW = 200  # the largest number of quantities for the full mESS, which needs their covariance


@dataclass(frozen=True)
class Convergence:
    """Diagnostics of q scalar quantities, each an array (q,), NaN where unknown; `unknown` gives the reasons.

    `ess` sums autocorrelations up to the first negative one, `ess_batch` uses batch means. Both are summed over chains,
    so they do not detect chains that disagree; `ess_bulk`, `ess_tail` and `rhat` do.
    """

    space: str  # "weights" or "function"
    names: list[str]
    chains: int
    draws: int  # per chain: the length of the shortest
    ess: np.ndarray
    ess_batch: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    rhat: np.ndarray
    mess_full: float = float("nan")  # n(|Λ|/|Σ|)^{1/q}, for few quantities
    unknown: dict[str, str] = field(default_factory=dict)  # field → why it is NaN

    def __repr__(self) -> str:
        ess = _quantile(self.ess_bulk, 0.5)
        return (
            f"<Convergence of {len(self.names):,} {'predictions' if self.space == 'function' else 'weights'}, "
            f"{self.chains} chains × {self.draws} samples: largest R̂ {self.worst_rhat:.3f}, "
            f"{self.share_above(1.05):.0%} above 1.05, median bulk ESS {ess:.0f}>"
        )

    def _repr_html_(self) -> str:
        columns = {name: getattr(self, name) for name in ("rhat", "ess_bulk", "ess_tail", "ess", "ess_batch")}
        shares = {"smallest": 0.0, "median": 0.5, "largest": 1.0}
        rows = [(name, *(f"{_quantile(values, q):.4g}" for q in shares.values())) for name, values in columns.items()]
        worst = np.argsort(-np.nan_to_num(self.rhat, nan=-np.inf))[:_WORST]
        note = "Largest R̂: " + "; ".join(f"{self.names[i]} {self.rhat[i]:.3f}" for i in worst)
        return html.table(repr(self), rows, ["", *shares], note)

    @property
    def mess(self) -> float:
        """mESS, diagonal: the geometric mean of `ess`; NaN if unknown."""
        with np.errstate(divide="ignore"):
            return float(np.exp(np.log(self.ess).mean()))

    @property
    def worst_rhat(self) -> float:
        """The largest R̂; NaN if unknown."""
        known = self.rhat[~np.isnan(self.rhat)]
        return float(known.max()) if len(known) else float("nan")

    def share_above(self, limit: float = 1.01) -> float:
        """The share of known R̂ above a limit; NaN if none is known."""
        known = self.rhat[~np.isnan(self.rhat)]
        return float((known > limit).mean()) if len(known) else float("nan")


def convergence(draws: np.ndarray, *, space: str = "weights", names: Sequence[str] = ()) -> Convergence:
    """Diagnostics of draws (chains, draws, quantities)."""
    chains, n, quantities = draws.shape
    labels = list(names) or [str(i) for i in range(quantities)]
    if n < 4:
        why = f"{n} draws per chain; at least 4 are needed"
        unknown = dict.fromkeys((*_COLUMNS, "mess_full"), why)
        columns: dict[str, Any] = {name: np.full(quantities, np.nan) for name in _COLUMNS}
        return Convergence(space, labels, chains, n, unknown=unknown, **columns)
    unknown = {}
    draws = np.ascontiguousarray(draws, dtype=np.float64)
    values = torch.from_numpy(draws)
    varies = (draws != draws[:, :1]).any((0, 1))
    same = (draws == draws[:1, :1]).all((0, 1))
    if same.any():
        unknown["rhat"] = f"{int(same.sum())} of {quantities} quantities are constant"
    if chains < 2:
        unknown["rhat"] = "R̂ needs at least two chains"
    full = mess_full(values) if quantities <= _FEW and varies.all() else float("nan")
    if np.isnan(full):
        unknown["mess_full"] = (
            f"{chains} chains of {n} draws have too few batches for {quantities} quantities, or these are dependent"
        )
    bulk, tail, rhat = rank_statistics(draws)
    return Convergence(
        space=space,
        names=labels,
        chains=chains,
        draws=n,
        ess=torch.stack([effective_sample_size(chain) for chain in values]).sum(0).numpy(),
        ess_batch=torch.stack([batch_means_ess(chain) for chain in values]).sum(0).numpy(),
        ess_bulk=np.where(varies, bulk, 0.0),
        ess_tail=np.where(varies, tail, 0.0),
        rhat=np.where(same, np.nan, rhat),  # ArviZ gives ∞ if every chain is constant at a different value
        mess_full=full,
        unknown=unknown,
    )


def weight_convergence(
    chains: Sequence[Sequence[Mapping[str, Tensor]]],
    *,
    names: str | Sequence[str] | None = None,
    subset: int | None = 1000,
    seed: int = 0,
) -> Convergence:
    """Convergence in weight space of parameters that match `names` (default: all), a random subset of them (None: all).

    The samples of `chains` are read once per 64 MB of selected numbers, so the weights need not fit in memory.
    """
    chosen = Chosen.of(next(iter(chains[0])), names, subset, seed)
    per_block = max(1, _BLOCK_BYTES // (8 * sum(map(len, chains))))
    parts = [convergence(stacked(chains, part), names=part.labels()) for part in chosen.blocks(per_block)]
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    unknown = {name: why for part in parts for name, why in part.unknown.items()}
    unknown["mess_full"] = "too many quantities for a full covariance"
    labels = [name for part in parts for name in part.names]
    return Convergence("weights", labels, parts[0].chains, parts[0].draws, unknown=unknown, **columns)


@dataclass(frozen=True)
class Chosen:
    """Selected elements of a sample, by their index in the concatenation of its flattened tensors."""

    shapes: dict[str, tuple[int, ...]]
    places: Tensor  # indices, ascending

    @classmethod
    def of(
        cls, sample: Mapping[str, Tensor], names: str | Sequence[str] | None, subset: int | None, seed: int
    ) -> Chosen:
        """A random subset (None: all) of the elements of tensors whose names match a pattern."""
        patterns = ["*"] if names is None else [names] if isinstance(names, str) else list(names)
        shapes = {
            name: tuple(tensor.shape)
            for name, tensor in sample.items()
            if tensor.is_floating_point() and any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        if not shapes:
            raise ValueError(f"names={names!r} matches none of {list(sample)}.")
        if subset is not None and subset < 1:
            raise ValueError(f"subset={subset}: give a number of weights, 1 or more, or None for all.")
        count = sum(sample[name].numel() for name in shapes)
        if subset is None or subset >= count:
            return cls(shapes, torch.arange(count, device="cpu"))
        generator = torch.Generator().manual_seed(seed)
        return cls(shapes, torch.randperm(count, generator=generator, device="cpu")[:subset].sort().values)

    def read(self, sample: Mapping[str, Tensor]) -> Tensor:
        """The selected elements of a sample, (q,)."""
        return torch.cat([sample[name].reshape(-1)[places].double() for name, places in self._by_tensor()])

    def read_stack(self, stack: Mapping[str, Tensor]) -> Tensor:
        """The selected elements of stacked samples, (samples, q)."""
        return torch.cat([stack[n].reshape(len(stack[n]), -1)[:, p].double() for n, p in self._by_tensor()], dim=1)

    def labels(self) -> list[str]:
        """Name and index of each element: "0.weight[3, 1]"."""
        return [
            f"{name}{[int(i) for i in np.unravel_index(place, self.shapes[name])]}" if self.shapes[name] else name
            for name, places in self._by_tensor()
            for place in places.tolist()
        ]

    def blocks(self, size: int) -> list[Chosen]:
        """The selection in blocks of up to `size` elements."""
        return [Chosen(self.shapes, places) for places in torch.split(self.places, size)]

    def _by_tensor(self) -> list[tuple[str, Tensor]]:
        found, start = [], 0
        for name, shape in self.shapes.items():
            stop = start + int(np.prod(shape, dtype=np.int64))
            inside = self.places[(self.places >= start) & (self.places < stop)] - start
            if len(inside):
                found.append((name, inside))
            start = stop
        return found


def stacked(chains: Sequence[Any], chosen: Chosen) -> np.ndarray:
    """The selected elements as (chains, draws, quantities), chains cut to the last draws of the shortest.

    Stored samples are read many at a time.
    """
    rows = []
    for chain in chains:
        if hasattr(chain, "stacks"):
            rows.append(torch.cat([chosen.read_stack(stack) for stack in chain.stacks(_TOGETHER)]).numpy())
        else:
            rows.append(torch.stack([chosen.read(sample) for sample in chain]).numpy())
    return equal_lengths(rows)


def _quantile(values: np.ndarray, share: float) -> float:
    """NaN if none is known."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")


def equal_lengths(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The chains stacked, cut to the last draws of the shortest."""
    shortest = min(len(row) for row in rows)
    return np.stack([row[-shortest:] for row in rows])


def arviz() -> Any:
    """Import ArviZ without the FutureWarning about its next version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz

    return arviz

"""A run as `arviz.InferenceData`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from langevin.diagnostics.convergence import Chosen, arviz, stacked

_LARGEST = 2 << 30  # bytes of draws in memory; more are refused


def inference_data(
    chains: Mapping[int, Sequence[Mapping[str, Tensor]]],
    stats: Mapping[str, Mapping[int, Sequence[float]]],
    *,
    names: str | Sequence[str] | None,
    subset: int | None,
    seed: int,
    predictions: Mapping[str, Iterable[np.ndarray]],
) -> Any:
    """Groups: `posterior`, each tensor as (chain, draw, …), or with a subset the one variable `weight`; `sample_stats`,
    the recorded statistics; `predictions` on a probe set, name → one array (draw, …) per chain.
    """
    numbers, samples = list(chains), list(chains.values())
    chosen = Chosen.of(next(iter(samples[0])), names, subset, seed)
    size = 8 * len(chosen.places) * sum(len(chain) for chain in samples)
    if size > _LARGEST:
        raise ValueError(
            f"The draws of {len(chosen.places):,} weights would take {size / 1e9:.1f} GB of memory. Choose some: "
            f'run.to_arviz(subset=1000), or run.to_arviz(names="head.*").'
        )
    draws = stacked(samples, chosen)
    shortest = draws.shape[1]
    coords: dict[str, Any] = {"chain": numbers}
    dims: dict[str, list[str]] = {}
    if subset is None:
        weights = _by_name(draws, chosen.shapes)
    else:
        weights = {"weight": draws}
        coords["place"], dims["weight"] = chosen.labels(), ["place"]
    groups: dict[str, Any] = {"posterior": weights, "sample_stats": _stats(stats, numbers, shortest, coords, dims)}
    if predictions:
        groups["predictions"] = {
            name: np.stack([rows[-shortest:] for rows in by_chain]) for name, by_chain in predictions.items()
        }
    return arviz().from_dict(**groups, coords=coords, dims=dims)


def _by_name(draws: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = np.split(draws, np.cumsum(sizes)[:-1], axis=2)
    return {
        name: part.reshape(*draws.shape[:2], *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _stats(
    recorded: Mapping[str, Mapping[int, Sequence[float]]],
    numbers: Sequence[int],
    shortest: int,
    coords: dict[str, Any],
    dims: dict[str, list[str]],
) -> dict[str, np.ndarray]:
    """The statistics as (chain, draw); temperatures of tensors as one variable with a dimension `tensor`."""
    arrays = {name: np.array([by_chain[c][-shortest:] for c in numbers]) for name, by_chain in recorded.items()}
    of_tensors = [name for name in arrays if name.startswith("temperature/")]
    stats = {name: array for name, array in arrays.items() if name not in of_tensors}
    if of_tensors:
        coords["tensor"] = [name.removeprefix("temperature/") for name in of_tensors]
        dims["tensor_temperature"] = ["tensor"]
        stats["tensor_temperature"] = np.stack([arrays[name] for name in of_tensors], axis=2)
    return stats

"""Plots of chains: traces, autocorrelation, temperature. A trace is `run.trace(name)`: chain → values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics.rank_statistics import autocovariance
from langevin.plots.style import INK, MUTED, SERIES, drawing, legend_above, need, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Trace = Mapping[int, Sequence[float]]


def traces(values: Trace, axes: Axes | None = None, *, label: str = "loss", log: bool = False) -> Axes:
    """Trace plot of each chain: chains that sample the same distribution overlap and do not drift."""
    need(sum(len(chain) for chain in values.values()), "trace")
    with drawing(axes) as axes:
        for index, (chain, each) in enumerate(values.items()):
            axes.plot(
                np.arange(1, len(each) + 1),
                each,
                color=SERIES[index % len(SERIES)],
                linestyle="-",  # dashes make noisy lines hard to read, and chains need not be distinguished
                linewidth=0.9,
                marker="o" if len(each) == 1 else "",
                label=f"chain {chain}" if index < 4 else None,
            )
        axes.set(xlabel="sample", ylabel=label, yscale="log" if log else "linear")
        if len(values) > 1:
            legend_above(axes)
    return axes


def autocorrelation_of(values: Sequence[float], lags: int) -> np.ndarray:
    """Autocorrelations ρ₀ … ρ_lags of one sequence; NaN if it is constant."""
    found = autocovariance(np.asarray(values, dtype=float)[None])[: lags + 1]
    return found / found[0] if found[0] > 0 else np.full_like(found, np.nan)


def autocorrelation(values: Trace, axes: Axes | None = None, *, lags: int = 30) -> Axes:
    """Autocorrelation ρ against the lag in samples; inside the band it is compatible with 0."""
    longest = max((len(chain) for chain in values.values()), default=0)
    if longest < 3:
        raise ValueError(f"Autocorrelation needs a chain of at least 3 samples; given {longest}.")
    with drawing(axes) as axes:
        chance, lowest = 2 / np.sqrt(longest), -0.25
        axes.axhspan(-chance, chance, color=MUTED, alpha=0.15, linewidth=0)
        axes.axhline(0, color=MUTED, linewidth=0.8, linestyle="-")
        for index, (chain, each) in enumerate(values.items()):
            if len(each) < 3:
                continue
            rho = autocorrelation_of(each, min(lags, len(each) - 1))
            lowest = min(lowest, float(np.nan_to_num(rho).min()))
            axes.plot(rho, **series(index), marker="", label=f"chain {chain}" if index < 4 else None)
        axes.set(xlabel="lag (samples)", ylabel="autocorrelation", ylim=(1.1 * min(lowest, -chance), 1.05))
        if len(values) > 1:
            legend_above(axes)
    return axes


def temperature(
    values: Trace, axes: Axes | None = None, *, target: float, measured: float = np.nan, error: float = np.nan
) -> Axes:
    """Trace plot of the temperature of all chains, with the target temperature and the mean ± 2 standard errors."""
    need(sum(len(chain) for chain in values.values()), "temperature")
    with drawing(axes) as axes:
        for chain in values.values():
            axes.plot(np.arange(1, len(chain) + 1), chain, ".", color=SERIES[0], markersize=3, alpha=0.45)
        axes.axhline(target, color=INK, linewidth=1.2, linestyle="-", label=f"target {target:g}")
        if np.isfinite(measured):
            label = f"measured: {measured:.3g}" + (f" ± {error:.1g}" if np.isfinite(error) else "")
            axes.axhline(measured, color=SERIES[1], linewidth=1.6, linestyle=(0, (5, 1.5)), label=label)
            if np.isfinite(error):
                axes.axhspan(measured - 2 * error, measured + 2 * error, color=SERIES[1], alpha=0.2, linewidth=0)
        axes.set(xlabel="sample", ylabel="virial temperature")
        legend_above(axes)
    return axes


def temperature_sweep(
    temperatures: Sequence[float],
    losses: Mapping[str, Sequence[float]],
    axes: Axes | None = None,
    *,
    errors: Mapping[str, Sequence[float]] | None = None,
) -> Axes:
    """Test cross-entropy against the sampling temperature; T = 1 is the Bayes posterior."""
    need(len(temperatures), "temperature")
    if wrong := [name for name, each in losses.items() if len(each) != len(temperatures)]:
        raise ValueError(f"{len(temperatures)} temperatures, but {wrong[0]!r} has {len(losses[wrong[0]])} losses.")
    with drawing(axes) as axes:
        axes.axvline(1.0, color=MUTED, linewidth=1, linestyle="-")
        for index, (name, each) in enumerate(losses.items()):
            bars = None if errors is None else errors.get(name)
            axes.errorbar(temperatures, each, bars, label=name, capsize=2, marker="os^D"[index % 4], **series(index))
        axes.set(xscale="log", xlabel="temperature", ylabel="test cross-entropy (nats)")
        axes.legend()
    return axes

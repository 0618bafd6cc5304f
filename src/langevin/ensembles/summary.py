"""A run in a few lines: temperatures, convergence, stationarity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics.target_temperature import Temperatures

if TYPE_CHECKING:
    from langevin.ensembles.run import Run


def summary(run: Run, temperatures: Temperatures) -> str:
    """The lines."""
    if len(run) == 0:
        return "No sample yet."
    judgement = temperatures.judge()
    weights = run.convergence(subset=200)
    rhat, ess = weights.worst_rhat, float(np.median(weights.ess_bulk))
    lines = [
        f"{len(run)} samples of {len(run.chains)} chain{'' if len(run.chains) == 1 else 's'}",
        "",
        "Temperature",
        *(f"  {line}" for line in temperatures.text().splitlines()),
        f"  {judgement.level}: {judgement.message} {judgement.advice}".rstrip(),
        "",
        "Convergence of the weights (predictions: run.function_convergence(x))",
        f"  largest R̂   {'unknown' if np.isnan(rhat) else f'{rhat:.3g}'}",
        f"  median ESS  {'unknown' if np.isnan(ess) else f'{ess:.0f}'}",
        "",
        "Stationarity",
    ]
    for test in run.stationarity():
        drift = f"drifts from {test.early:.4g} to {test.late:.4g} (chain {test.chain}, p = {test.p_value:.2g})"
        answer = {True: f"no drift detected (p = {test.p_value:.2g})", False: drift, None: f"unknown: {test.why}"}
        lines.append(f"  {test.trace:<12} {answer[test.stationary]}")
    return "\n".join(lines)

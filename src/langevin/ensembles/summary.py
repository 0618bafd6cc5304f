"""What a run has recorded, judged: the verdict, and a summary in a few lines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics import verdict as judged
from langevin.diagnostics.convergence import Convergence
from langevin.diagnostics.target_temperature import Temperatures
from langevin.diagnostics.verdict import Finding, Verdict
from langevin.ensembles.advice import with_call
from langevin.ensembles.thermometers import sampled_examples

if TYPE_CHECKING:
    from langevin.ensembles.run import Run


def chain_findings(run: Run, temperatures: Temperatures, convergence: Convergence | None) -> list[Finding]:
    """What is to be said of the chains of a run; convergence is in function space or, at second best, of weights."""
    recipe = run.manifest.get("sampler")
    method = recipe["name"] if recipe else "This sampler"
    samples_posterior = run.sampler is None or run.sampler.target == "posterior"
    found = [
        judged.corrupted(list(run.corrupted.values()), len(run)),
        judged.temperature(temperatures, method, samples_posterior),
        judged.loss(_start_loss(run), _trace(run, "loss"), _spread(run)),
        judged.rejected(_mean(run, "acceptance"), _share_undone(run)),
    ]
    if samples_posterior:
        if convergence is not None:
            between = judged.convergence(convergence)
            if "autopilot" in run.manifest and between.level in ("warning", "bad"):  # see docs/autopilot.md
                own = "Chains started at optima of their own, and a network has many modes."
                between = replace(between, level="unknown", message=f"{between.message} {own}", advice="")
            found += [between, judged.effective(len(run), convergence)]
        found.append(judged.stationary(run.stationarity(judged.DRIFT_LEVEL), run.target_temperature))
    ess = math.nan if convergence is None else judged.median_ess(convergence)
    return [with_call(finding, run.manifest, ess) for finding in found if finding is not None]


def judge(run: Run, temperatures: Temperatures, convergence: Convergence | None) -> Verdict:
    """The verdict on a run."""
    if len(run) == 0:
        nothing = Finding("Samples", "bad", "The run has no sample yet.", "Sample more steps.", "at least one sample")
        return Verdict.of([nothing], temperatures.virial)
    virial, gradient = temperatures.virial, temperatures.gradient
    target = temperatures.target
    farthest = max((virial, gradient), key=lambda t: abs(t.mean - target) if t.known else -1.0)
    shown = farthest if farthest.known else virial
    return Verdict.of(chain_findings(run, temperatures, convergence), shown, convergence)


def summary(run: Run, temperatures: Temperatures, convergence: Convergence | None) -> str:
    """Temperatures, convergence and stationarity, and the verdict."""
    if len(run) == 0 or convergence is None:
        return "No sample yet."
    verdict = judge(run, temperatures, convergence)
    space = "predictions" if convergence.space == "function" else "weights (of predictions: run.verdict(x))"
    lines = [
        f"{len(run)} samples of {len(run.chains)} chain{'' if len(run.chains) == 1 else 's'}",
        "",
        "Temperature",
        *(f"  {line}" for line in temperatures.text().splitlines()),
        "",
        f"Convergence of the {space}",
        f"  largest R̂   {'unknown' if np.isnan(verdict.rhat) else f'{verdict.rhat:.3g}'}",
        f"  median ESS  {'unknown' if np.isnan(verdict.ess) else f'{verdict.ess:.0f}'}",
        "",
        "Stationarity",
    ]
    for test in run.stationarity(judged.DRIFT_LEVEL):
        drift = f"drifts from {test.early:.4g} to {test.late:.4g} (chain {test.chain}, p = {test.p_value:.2g})"
        answer = {True: f"no drift detected (p = {test.p_value:.2g})", False: drift, None: f"unknown: {test.why}"}
        lines.append(f"  {test.trace:<12} {answer[test.stationary]}")
    lines += ["", f"Verdict: {verdict.level}"]
    lines += [f"  {f.level}: {f.message} {f.advice}".rstrip() for f in verdict.findings]
    return "\n".join(lines)


def _spread(run: Run) -> float:
    """How far above a minimum of the loss samples are expected at most: 2T per weight, over N."""
    target = run.target_temperature
    weights = sum(math.prod(spec["shape"]) for spec in run.manifest["tensors"].values())
    return float(2 * (target if math.isfinite(target) else 1.0) * weights / sampled_examples(run))


def _start_loss(run: Run) -> float:
    """NaN if the run did not record it."""
    found = run.manifest.get("start_loss")
    return found if isinstance(found, float) else math.nan


def _trace(run: Run, name: str) -> dict[int, list[float]]:
    return run.trace(name) if name in run.traces else {}


def _share_undone(run: Run) -> float:
    """The share of the steps after burn-in that were not finite, in the chain with most; NaN if unknown.

    Samplers record how many there were up to each sample.
    """
    counts = _trace(run, "rejected")
    steps = max(run.steps, default=0) - int(run.manifest.get("settings", {}).get("burn_in", 0))
    last = [values[-1] for values in counts.values() if len(values)]
    return max(last) / steps if last and steps > 0 else math.nan


def _mean(run: Run, name: str) -> float:
    values = [value for chain in _trace(run, name).values() for value in chain]
    return float(np.mean(values)) if values else math.nan

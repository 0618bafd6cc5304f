"""The verdict on a run: whether its samples can be trusted, by what was measured, what was expected, and what to do.

A finding is about one measurement; its level is good, warning, bad or unknown. What the data can't decide is unknown.
Every function here is pure: numbers in, a finding out. `run.verdict()`, the summary, the line at the end of
`lv.sample`, the report and the exit code of `langevin sample` all come from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from langevin.core import html
from langevin.core.statistics import Estimate
from langevin.diagnostics.convergence import Convergence
from langevin.diagnostics.stationarity import Stationarity
from langevin.diagnostics.target_temperature import TOLERANCE, Temperatures

Level = Literal["good", "warning", "bad", "unknown"]

RHAT_LIMIT = 1.05  # independent draws (4 chains of 100) stay below it, but often exceed 1.01
RHAT_BAD = 1.2
DISAGREEMENT = 0.1  # share of the probe set that may exceed the limit by chance
ENOUGH_SAMPLES = 100  # effective ones: the standard error of a predicted probability is then at most 0.05
DRIFT_LEVEL = 0.01  # false alarms about drifting traces
REJECTED = 0.001  # share of steps
_NEEDED = ("Temperature", "Effective sample size")


@dataclass(frozen=True)
class Finding:
    """What was measured (a sentence with the numbers), what was expected, and what to do about it, if anything."""

    about: str
    level: Level
    message: str
    advice: str = ""
    expected: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether the samples of a run can be trusted. The level is that of the worst finding; `str` gives one line."""

    level: Literal["good", "warning", "bad"]
    findings: list[Finding]
    temperature: Estimate
    rhat: float  # the largest; NaN if unknown
    ess: float  # the median; NaN if unknown

    @classmethod
    def of(
        cls, findings: Sequence[Finding | None], temperature: Estimate, convergence: Convergence | None = None
    ) -> Verdict:
        """The verdict by these findings. To be good, temperature and effective sample size have to be known."""
        found = [finding for finding in findings if finding is not None]
        levels = {finding.level for finding in found}
        level: Literal["good", "warning", "bad"] = "good"
        if "bad" in levels:
            level = "bad"
        elif "warning" in levels or any(f.level == "unknown" and f.about in _NEEDED for f in found):
            level = "warning"
        rhat = math.nan if convergence is None else convergence.worst_rhat
        ess = math.nan if convergence is None else median_ess(convergence)
        return cls(level, found, temperature, rhat, ess)

    @property
    def worst(self) -> list[Finding]:
        """The findings that decide the level of a run that is not good."""
        if self.level == "good":
            return []
        found = [finding for finding in self.findings if finding.level == self.level]
        if self.level == "warning":
            found += [finding for finding in self.findings if finding.level == "unknown" and finding.about in _NEEDED]
        return found

    def __str__(self) -> str:
        numbers = [
            f"T {self.temperature}" if math.isfinite(self.temperature.mean) else "T unknown",
            "R̂ unknown" if math.isnan(self.rhat) else f"R̂ {self.rhat:.3g}",
            "ESS unknown" if math.isnan(self.ess) else f"ESS {self.ess:.0f}",
        ]
        why = " ".join(f"{finding.message} {finding.advice}".rstrip() for finding in self.worst)
        return f"{self.level}: {', '.join(numbers)}. {why}".rstrip()

    def __repr__(self) -> str:
        return f"<Verdict {self}>"

    def _repr_html_(self) -> str:
        rows = [(f.about, f.level, f.message, f.advice) for f in self.findings]
        return html.table(str(self), rows, ["about", "level", "measured", "what to do"])


def corrupted(reasons: Sequence[str], usable: int) -> Finding | None:
    """Samples that could not be read or contain non-finite numbers, and were excluded."""
    if not reasons:
        return None
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    remain = f"{usable} sample{'' if usable == 1 else 's'} remain"
    message = f"Corrupted samples are excluded from everything below: {shown}. {remain}."
    advice = "Find out why; if the run diverged, sample again with a smaller lr."
    return Finding("Samples", "bad", message, advice, "all samples readable and finite")


def temperature(measured: Temperatures | None, method: str, samples_posterior: bool) -> Finding | None:
    """Whether the chains sampled at the target temperature, by the worst reading; None without a temperature."""
    if measured is None:
        return None
    if not samples_posterior or measured.target == 0:
        message = f"{method} has no sampling temperature: its weights are not samples of the posterior."
        return Finding("Temperature", "unknown", message)
    level, message, advice = measured.judge()
    expected = f"{measured.target:g} within {TOLERANCE:.0%}, by every reading"
    return Finding("Temperature", level, message, advice, expected)


def loss(start: float, traces: Mapping[int, Sequence[float]], spread: float) -> Finding | None:
    """Whether a chain left its start for far worse weights; None if not, or if the start's loss is unknown.

    `spread` is how far above a minimum samples are expected: a quadratic energy has T/2 per weight on average, heavier
    tails have up to twice as much. Divided by N like the loss.
    """
    means = {chain: float(np.mean(values)) for chain, values in traces.items() if len(values)}
    if not means or not math.isfinite(start):
        return None
    worst = max(means, key=lambda chain: means[chain])
    limit = start + abs(start) + 1 + spread
    if means[worst] <= limit:
        return None
    return Finding(
        "Loss",
        "bad",
        f"The loss of chain {worst} is {means[worst]:.3g} on average, far above the {start:.3g} of the start: the "
        f"chain diverged.",
        "Sample again with a smaller lr; `langevin doctor` estimates the largest stable one.",
        f"below {limit:.3g}",
    )


def convergence(found: Convergence) -> Finding:
    """R̂: the largest, and the share above the limit, which is higher for chains with few effective samples.

    Weights of a network are not identifiable: in weight space agreement is good, and disagreement says nothing.
    """
    about, worst = "Convergence", found.worst_rhat
    by_chance = _by_chance(found)
    limit, bad = max(RHAT_LIMIT, math.sqrt(1 + by_chance)), max(RHAT_BAD, math.sqrt(1 + 2 * by_chance))
    expected = f"R̂ ≤ {limit:.2f}"
    if math.isnan(worst):
        why = f"{found.draws} samples per chain are too few"
        why = found.unknown.get("rhat") or ("R̂ needs at least two chains" if found.chains < 2 else why)
        advice = "Sample four chains." if found.chains < 2 else "Save more samples."
        return Finding(about, "unknown", f"Unknown: {why}.", advice, expected)
    share = found.share_above(limit)
    function = found.space == "function"
    where = "of the probe set" if function else "of the weights"
    if share <= DISAGREEMENT and worst <= bad:
        message = f"The {found.chains} chains agree: R̂ ≤ {limit:.2f} on {1 - share:.0%} {where}, at most {worst:.2f}."
        return Finding(about, "good", message, "", expected)
    reaches = "∞" if math.isinf(worst) else f"{worst:.2g}"
    if not function:
        message = f"R̂ reaches {reaches} in weight space, where chains of a network that agree may differ."
        return Finding(about, "unknown", message, "Give inputs: run.verdict(x) compares predictions.", expected)
    if math.isinf(worst):
        message = f"Chains are stuck at different values: R̂ is above {limit:.2f} on {share:.0%} {where}."
        return Finding(about, "bad", message, "Raise the learning rate or the temperature.", expected)
    level: Level = "bad" if worst > bad else "warning"
    message = f"Chains disagree: R̂ reaches {reaches} and is above {limit:.2f} on {share:.0%} {where}."
    return Finding(about, level, message, "Run longer, or use a cyclical schedule to visit more modes.", expected)


def _by_chance(found: Convergence) -> float:
    """What R̂² − 1 of chains that agree exceeds in 0.1 % of cases.

    R̂² − 1 is about F/m for halves of chains with m effective samples each, F the ratio of the variances between and
    within them. m is that within chains: chains that disagree must not excuse themselves.
    """
    from scipy.special import fdtri

    halves, ess = 2 * found.chains, float(np.median(found.ess)) if len(found.ess) else math.nan
    return float(fdtri(halves - 1, 1000, 0.999)) * halves / ess if ess > 0 else 0.0


def effective(samples: int, found: Convergence) -> Finding:
    """The effective sample size, as the median over the probe set (or the weights)."""
    about, ess, expected = "Effective sample size", median_ess(found), f"{ENOUGH_SAMPLES} or more"
    if samples == 1:
        return Finding(about, "unknown", "One sample: epistemic uncertainty cannot be estimated.", "", expected)
    if not math.isfinite(ess):
        return Finding(about, "unknown", f"Unknown: {samples} samples are too few.", "Save more samples.", expected)
    size = f"ESS {ess:.0f} of {samples} samples"
    if ess >= ENOUGH_SAMPLES:
        return Finding(about, "good", f"{size}: enough for predictions.", "", expected)
    if found.space == "weights" and found.chains > 1:
        message = f"{size} in weight space, where chains of a network that agree may differ."
        return Finding(about, "unknown", message, "Give inputs: run.verdict(x) compares predictions.", expected)
    message = f"{size}: predictions still have a large Monte Carlo error."
    return Finding(about, "warning", message, "Run longer.", expected)


def stationary(traces: Sequence[Stationarity], target: float = math.nan) -> Finding:
    """Whether loss and temperature are stationary.

    A temperature may drift close to the target: soft directions, which settle last, are a small share of it.
    """
    about, expected = "Stationarity", "early and late parts of the traces agree"
    known = [trace for trace in traces if trace.stationary is not None]
    if not known:
        message = "Unknown: the traces are too short or mix too slowly."
        return Finding(about, "unknown", message, "Save more samples.", expected)
    moving = [trace for trace in known if not trace.stationary and not _close(trace, target)]
    if not moving:
        return Finding(about, "good", "No drift detected: early and late parts of the traces agree.", "", expected)
    worst = max(moving, key=lambda trace: abs(trace.z))
    others = f", and {len(moving) - 1} more traces" if len(moving) > 1 else ""
    message = (
        f"The {worst.trace} of chain {worst.chain} drifts, from {worst.early:.3g} to {worst.late:.3g}{others}: the "
        f"burn-in was too short."
    )
    return Finding(about, "warning", message, "Run longer, with a longer burn-in.", expected)


def _close(trace: Stationarity, target: float) -> bool:
    """Whether a temperature was within its tolerance all the time."""
    if trace.trace != "temperature":
        return False
    return max(abs(trace.early - target), abs(trace.late - target)) <= TOLERANCE * target


def rejected(acceptance: float, rejections: float) -> Finding | None:
    """Metropolis acceptance, and the share of steps that were undone because they were not finite; NaN if unknown."""
    advice = "Lower the learning rate."
    if acceptance < 0.5:
        message = f"{acceptance:.0%} of the proposals were accepted."
        return Finding("Acceptance", "bad" if acceptance < 0.1 else "warning", message, advice, "0.6 to 0.9")
    if rejections > REJECTED:
        message = f"{rejections:.2%} of the steps were not finite and were undone."
        level: Level = "bad" if rejections > 0.05 else "warning"
        return Finding("Rejected steps", level, message, advice, f"at most {REJECTED:.1%}")
    return None


def median_ess(found: Convergence) -> float:
    """The median of the bulk ESS; NaN if unknown."""
    return float(np.median(found.ess_bulk)) if len(found.ess_bulk) else math.nan

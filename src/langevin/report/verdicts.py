"""Verdicts: what a measurement means, in one sentence. Every function here is pure: numbers in, a verdict out.

The level of a verdict is good, check, bad or unknown. What the data cannot determine is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from langevin.diagnostics.stationarity import Stationarity
from langevin.diagnostics.target_temperature import Temperatures
from langevin.evaluation.attacks import Attack, Attacked
from langevin.evaluation.calibration import Reliability
from langevin.evaluation.compare import Interval
from langevin.evaluation.ood import Detection

Level = Literal["good", "check", "bad", "unknown"]

RHAT_LIMIT = 1.05  # independent draws (4 chains of 100) stay below it, but often exceed 1.01
DISAGREEMENT = 0.05  # share of the probe set that may exceed the limit by chance
ENOUGH_SAMPLES = 100  # effective ones: the standard error of a predicted probability is then at most 0.05


@dataclass(frozen=True)
class Verdict:
    """One finding: its subject, its level, a sentence with the numbers, and advice, if any."""

    about: str
    level: Level
    message: str
    advice: str = ""


def corrupted(reasons: Sequence[str], usable: int) -> Verdict | None:
    """Samples that could not be read or contain non-finite numbers, and were excluded."""
    if not reasons:
        return None
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    message = f"Corrupted samples are excluded from everything below: {shown}. {_count(usable, 'sample')} remain."
    return Verdict("Samples", "bad", message, "Find out why; if the run diverged, sample again with a smaller lr.")


def temperature(measured: Temperatures | None, method: str, samples_posterior: bool) -> Verdict | None:
    """Whether the chains sampled at the target temperature, by the worst reading; None without a temperature."""
    if measured is None:
        return None
    if not samples_posterior or measured.target == 0:
        message = f"{method} has no sampling temperature: its weights are not samples of the posterior."
        return Verdict("Temperature", "unknown", message)
    return Verdict("Temperature", *measured.judge())


def convergence(chains: int, draws: int, worst: float, share: float, why: str = "") -> Verdict:
    """R̂ in function space: the largest on the probe set, and the share above the limit."""
    about = "Convergence"
    if math.isnan(worst):
        reason = why or ("R̂ needs at least two chains" if chains < 2 else f"{draws} samples per chain are too few")
        return Verdict(about, "unknown", f"Unknown: {reason}.", "Sample four chains.")
    if share <= DISAGREEMENT and math.isfinite(worst):
        message = (
            f"The {chains} chains agree: R̂ ≤ {RHAT_LIMIT} on {1 - share:.0%} of the probe set, at most {worst:.2f}."
        )
        return Verdict(about, "good", message)
    level: Level = "bad" if worst > 1.2 else "check"
    if math.isinf(worst):
        message = f"Chains are stuck at different values: R̂ is above {RHAT_LIMIT} on {share:.0%} of the probe set."
        return Verdict(about, "bad", message, "Raise the learning rate or the temperature.")
    message = f"Chains disagree: R̂ reaches {worst:.2g} and is above {RHAT_LIMIT} on {share:.0%} of the probe set."
    return Verdict(about, level, message, "Run longer, or use a cyclical schedule to visit more modes.")


def effective(samples: int, ess: float) -> Verdict:
    """The effective sample size, as the median over the probe set."""
    about = "Effective sample size"
    if samples == 1:
        return Verdict(about, "unknown", "One sample: epistemic uncertainty cannot be estimated.")
    if not math.isfinite(ess):
        return Verdict(about, "unknown", f"Unknown: {samples} samples are too few.", "Save more samples.")
    found = f"ESS {ess:.0f} of {samples} samples"
    if ess >= ENOUGH_SAMPLES:
        return Verdict(about, "good", f"{found}: enough for predictions.")
    return Verdict(about, "check", f"{found}: predictions still have a large Monte Carlo error.", "Run longer.")


def stationary(traces: Sequence[Stationarity]) -> Verdict:
    """Whether loss and temperature are stationary."""
    about = "Stationarity"
    known = [trace for trace in traces if trace.stationary is not None]
    if not known:
        return Verdict(about, "unknown", "Unknown: the traces are too short or mix too slowly.", "Save more samples.")
    moving = [trace for trace in known if not trace.stationary]
    if not moving:
        return Verdict(about, "good", "No drift detected: early and late parts of the traces agree.")
    worst = max(moving, key=lambda trace: abs(trace.z))
    others = f", and {len(moving) - 1} more traces" if len(moving) > 1 else ""
    message = (
        f"The {worst.trace} of chain {worst.chain} drifts, from {worst.early:.3g} to {worst.late:.3g}{others}: the "
        f"burn-in was too short."
    )
    return Verdict(about, "check", message, "Run longer, with a longer burn-in.")


class Chance(NamedTuple):
    """Of a calibrated model: mean and standard deviation of the calibration error, standard deviation of the gap."""

    error: float
    spread: float
    gap: float


def chance_level(bins: Reliability) -> Chance:
    """In a bin of n examples accuracy − p is about N(0, σ² = p(1−p)/n), so its size is σ√(2/π) ± σ√(1 − 2/π)."""
    p, n = bins.confidence.double(), bins.size.double()
    weighted = (p * (1 - p) / n).sqrt() * n / n.sum()  # the weight of a bin × its σ
    norm = float(weighted.square().sum().sqrt())
    return Chance(math.sqrt(2 / math.pi) * float(weighted.sum()), math.sqrt(1 - 2 / math.pi) * norm, norm)


def calibration(error: float, confidence: float, accuracy: float, chance: Chance) -> Verdict:
    """Whether confidence is calibrated: error and gap within two standard deviations of chance count as calibrated."""
    found = f"confidence {confidence:.2f}, accuracy {accuracy:.2f}, calibration error {error:.3f}"
    within = error <= chance.error + 2 * chance.spread and abs(confidence - accuracy) <= 2 * chance.gap
    if within or error <= 0.01:
        return Verdict("Calibration", "good", f"No miscalibration detected: {found}.")
    level: Level = "bad" if error > 0.1 and confidence > accuracy else "check"
    if confidence > accuracy:
        return Verdict("Calibration", level, f"Overconfident: {found}.", "Use more samples or a wider prior.")
    return Verdict("Calibration", level, f"Underconfident: {found}.", "Use more data or a narrower prior.")


def coverage(found: Mapping[float, float], examples: int) -> Verdict:
    """Whether central intervals of all probabilities have their nominal coverage.

    By the worst of them, in binomial standard errors: of nine, 5 % of calibrated models exceed 2.77 (Bonferroni).
    """
    errors = {nominal: math.sqrt(nominal * (1 - nominal) / examples) for nominal in found}
    worst = max(found, key=lambda nominal: abs(found[nominal] - nominal) / errors[nominal])
    inside = found[worst]
    if abs(inside - worst) <= max(2.77 * errors[worst], 0.02):
        levels = f"{min(found):.0%} to {max(found):.0%}"
        message = f"No miscalibration detected: intervals of {levels} have their coverage, {found[0.9]:.0%} at 90%."
        return Verdict("Calibration", "good", message)
    message = f"{inside:.0%} of the targets lie in their {worst:.0%} intervals."
    if inside < worst:
        return Verdict("Calibration", "bad" if inside < worst - 0.15 else "check", f"Overconfident: {message}")
    return Verdict("Calibration", "check", f"Underconfident: {message}")


def ood(found: Mapping[str, Mapping[str, Detection]]) -> list[Verdict]:
    """Whether uncertainty detects out-of-distribution inputs, for each set of them."""
    about = "OOD detection"
    if not found:
        advice = 'Give out-of-distribution inputs: lv.evaluate(…, ood={"name": inputs}).'
        return [Verdict(about, "unknown", "Unknown: no out-of-distribution inputs were given.", advice)]
    verdicts = []
    for name, by in found.items():
        best = max(by, key=lambda score: by[score].auroc)
        auroc, fpr = by[best].auroc, by[best].fpr95
        numbers = f"AUROC {auroc:.2f} by {best}, FPR95 {fpr:.0%}"
        if auroc >= 0.9:
            verdicts.append(Verdict(about, "good", f"Detects {name}: {numbers}."))
        elif auroc >= 0.7:
            verdicts.append(Verdict(about, "check", f"Detects part of {name}: {numbers}."))
        else:
            verdicts.append(Verdict(about, "bad", f"Does not detect {name}: {numbers}."))
    return verdicts


def attack_name(attack: Attack) -> str:
    """Class and eps of an attack: "FGSM(0.1)"."""
    return f"{type(attack).__name__}({attack.eps:g})"


def attacked(name: str, result: Attacked) -> Verdict:
    """Accuracy under an attack, and whether uncertainty detects the attack."""
    best = max(result.detection, key=lambda score: result.detection[score].auroc)
    auroc = result.detection[best].auroc
    message = (
        f"Under {name} accuracy falls from {result.clean_accuracy:.0%} to {result.accuracy:.0%}; attacked inputs are "
        f"detected with AUROC {auroc:.2f} (by {best})."
    )
    remaining = result.accuracy / max(result.clean_accuracy, 1e-9)
    level: Level = "good" if remaining >= 0.9 else "check" if remaining >= 0.5 or auroc >= 0.9 else "bad"
    return Verdict("Attack", level, message)


def baseline(other: str, nll: Interval) -> Verdict:
    """Whether this run has a lower NLL than a baseline: the difference, baseline − this, with its interval."""
    side = "lower" if nll.value >= 0 else "higher"
    low, high = (nll.low, nll.high) if nll.value >= 0 else (-nll.high, -nll.low)
    interval = f" (interval {low:.3f} to {high:.3f})" if math.isfinite(low) else ""
    found = f"NLL {side} by {abs(nll.value):.3f} nats{interval}".replace("-", "−")
    if not nll.excludes_zero:
        return Verdict(
            "Comparison", "unknown", f"No significant difference from {other}: {found}.", "Test on more data."
        )
    if nll.value > 0:
        return Verdict("Comparison", "good", f"Better than {other}: {found}.")
    return Verdict("Comparison", "bad", f"Worse than {other}: {found}.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

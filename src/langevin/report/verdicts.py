"""Findings about predictions: what a measurement means, in one sentence. All functions are pure.

Those about the chains of a run are in `langevin.diagnostics.verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from langevin.diagnostics.verdict import Finding, Level
from langevin.evaluation.attacks import Attack, Attacked
from langevin.evaluation.calibration import Reliability
from langevin.evaluation.compare import Interval
from langevin.evaluation.ood import Detection


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


_RESCALE = "rescale on held-out data: lv.evaluation.temperature_scaling(run, held_out)"
_WIDER = (
    'Sample with temperature="auto", or with a wider prior: a narrow one keeps probabilities away from 0 and 1, of the '
    f"deep ensemble too (lv.Posterior(…, lv.priors.Gaussian(1.0))). Or {_RESCALE}."
)
_INTERVALS = (
    "Let the noise depend on the inputs (HeteroscedasticGaussian, or HeteroscedasticStudentT with outliers), or use "
    "lv.evaluation.conformal(run, held_out)."
)


def calibration(error: float, confidence: float, accuracy: float, chance: Chance) -> Finding:
    """Whether confidence is calibrated: error and gap within two standard deviations of chance count as calibrated."""
    found = f"confidence {confidence:.2f}, accuracy {accuracy:.2f}, calibration error {error:.3f}"
    within = error <= chance.error + 2 * chance.spread and abs(confidence - accuracy) <= 2 * chance.gap
    if within or error <= 0.01:
        return Finding("Calibration", "good", f"No miscalibration detected: {found}.")
    level: Level = "bad" if error > 0.1 and confidence > accuracy else "warning"
    if confidence > accuracy:
        return Finding("Calibration", level, f"Overconfident: {found}.", f"Sample more chains, or {_RESCALE}.")
    return Finding("Calibration", level, f"Underconfident: {found}.", _WIDER)


def coverage(found: Mapping[float, float], examples: int) -> Finding:
    """Whether central intervals of all probabilities have their nominal coverage.

    By the worst of them, in binomial standard errors: of nine, 5 % of calibrated models exceed 2.77 (Bonferroni).
    """
    errors = {nominal: math.sqrt(nominal * (1 - nominal) / examples) for nominal in found}
    worst = max(found, key=lambda nominal: abs(found[nominal] - nominal) / errors[nominal])
    inside = found[worst]
    if abs(inside - worst) <= max(2.77 * errors[worst], 0.02):
        levels = f"{min(found):.0%} to {max(found):.0%}"
        message = f"No miscalibration detected: intervals of {levels} have their coverage, {found[0.9]:.0%} at 90%."
        return Finding("Calibration", "good", message)
    message = f"{inside:.0%} of the targets lie in their {worst:.0%} intervals."
    if inside < worst:
        level: Level = "bad" if inside < worst - 0.15 else "warning"
        return Finding("Calibration", level, f"Overconfident: {message}", _INTERVALS)
    return Finding("Calibration", "warning", f"Underconfident: {message}", _INTERVALS)


def ood(found: Mapping[str, Mapping[str, Detection]]) -> list[Finding]:
    """Whether uncertainty detects out-of-distribution inputs, for each set of them."""
    about = "OOD detection"
    if not found:
        advice = 'Give out-of-distribution inputs: lv.evaluate(…, ood={"name": inputs}).'
        return [Finding(about, "unknown", "Unknown: no out-of-distribution inputs were given.", advice)]
    verdicts = []
    for name, by in found.items():
        best = max(by, key=lambda score: by[score].auroc)
        auroc, fpr = by[best].auroc, by[best].fpr95
        numbers = f"AUROC {auroc:.2f} by {best}, FPR95 {fpr:.0%}"
        if auroc >= 0.9:
            verdicts.append(Finding(about, "good", f"Detects {name}: {numbers}."))
        elif auroc >= 0.7:
            verdicts.append(Finding(about, "warning", f"Detects part of {name}: {numbers}."))
        else:
            verdicts.append(Finding(about, "bad", f"Does not detect {name}: {numbers}."))
    return verdicts


def attack_name(attack: Attack) -> str:
    """Class and eps of an attack: "FGSM(0.1)"."""
    return f"{type(attack).__name__}({attack.eps:g})"


def attacked(name: str, result: Attacked) -> Finding:
    """Accuracy under an attack, and whether uncertainty detects the attack."""
    best = max(result.detection, key=lambda score: result.detection[score].auroc)
    auroc = result.detection[best].auroc
    message = (
        f"Under {name} accuracy falls from {result.clean_accuracy:.0%} to {result.accuracy:.0%}; attacked inputs are "
        f"detected with AUROC {auroc:.2f} (by {best})."
    )
    remaining = result.accuracy / max(result.clean_accuracy, 1e-9)
    level: Level = "good" if remaining >= 0.9 else "warning" if remaining >= 0.5 or auroc >= 0.9 else "bad"
    return Finding("Attack", level, message)


def baseline(other: str, nll: Interval) -> Finding:
    """Whether this run has a lower NLL than a baseline: the difference, baseline − this, with its interval."""
    side = "lower" if nll.value >= 0 else "higher"
    low, high = (nll.low, nll.high) if nll.value >= 0 else (-nll.high, -nll.low)
    interval = f" (interval {low:.3f} to {high:.3f})" if math.isfinite(low) else ""
    found = f"NLL {side} by {abs(nll.value):.3f} nats{interval}".replace("-", "−")
    if not nll.excludes_zero:
        return Finding(
            "Comparison", "unknown", f"No significant difference from {other}: {found}.", "Test on more data."
        )
    if nll.value > 0:
        return Finding("Comparison", "good", f"Better than {other}: {found}.")
    return Finding("Comparison", "bad", f"Worse than {other}: {found}.")

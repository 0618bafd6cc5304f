"""What the numbers mean, in plain words. Every function here is pure: numbers in, a sentence out.

A verdict is good, needs a look, is bad, or is unknown; what can't be told from the data at hand is said to be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from langevin.core.statistics import Estimate
from langevin.diagnostics.stationarity import Stationarity
from langevin.evaluation.attacks import Attack, Attacked
from langevin.evaluation.calibration import Reliability
from langevin.evaluation.compare import Interval
from langevin.evaluation.ood import Detection

Level = Literal["good", "look", "bad", "unknown"]

TEMPERATURE_TOLERANCE = 0.1  # of the T that was asked, as in `find_lr`
RHAT_LIMIT = 1.05  # independent draws, 4 chains of 100, stay below it; 1.01 they often exceed
DISAGREEMENT = 0.05  # share of the probe set above the limit that is still put down to chance
ENOUGH_SAMPLES = 100  # effective ones: a predicted probability is then known to 0.05 or better


@dataclass(frozen=True)
class Verdict:
    """One answer: what it is about, how it stands, a sentence with the numbers, and what to do if anything."""

    about: str
    level: Level
    says: str
    advice: str = ""


def damaged(reasons: Sequence[str], kept: int) -> Verdict | None:
    """Samples that could not be read or held numbers that are not finite, and were left out."""
    if not reasons:
        return None
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    says = f"CorruptedFileError samples were left out of everything below: {shown}. {_count(kept, 'sample')} remain."
    return Verdict("Samples", "bad", says, "Find out why; if the run diverged, sample again with a smaller lr.")


def temperature(measured: Estimate | None, asked: float, method: str, samples_posterior: bool) -> Verdict | None:
    """Whether the chains sampled at the temperature that was asked; None for what has no temperature to ask about."""
    if measured is None:
        return None
    if not samples_posterior or asked == 0:
        return Verdict(
            "Temperature",
            "unknown",
            f"{method} injects no noise that fits a temperature: its weights are not samples of the posterior.",
        )
    if not math.isfinite(measured.mean):
        return Verdict("Temperature", "unknown", "No temperature was read.", "Sample more steps after the burn-in.")
    if not math.isfinite(measured.error):
        says = f"Samples at T = {measured.mean:.2f}, asked {asked:g}; its error is unknown, since samples are too few."
        return Verdict("Temperature", "unknown", says, "Keep at least four samples a chain.")
    said = f"Samples at T = {measured.mean:.2f} ± {measured.error:.2f}"
    if not math.isfinite(asked):
        return Verdict("Temperature", "unknown", f"{said}; which T was asked is not known of a sampler of your own.")
    low, high = measured.mean - 2 * measured.error, measured.mean + 2 * measured.error
    least, most = asked * (1 - TEMPERATURE_TOLERANCE), asked * (1 + TEMPERATURE_TOLERANCE)
    if least <= low and high <= most:
        return Verdict("Temperature", "good", f"{said}: as asked (T = {asked:g}).")
    if low > most:
        return Verdict(
            "Temperature",
            "bad",
            f"{said}: too hot, asked T = {asked:g}.",
            "Lower the learning rate or enlarge batches.",
        )
    if high < least:
        return Verdict(
            "Temperature",
            "bad",
            f"{said}: too cold, asked T = {asked:g}; the chains have not spread yet.",
            "Run longer, with a longer burn-in.",
        )
    if high - low <= 2 * TEMPERATURE_TOLERANCE * asked:
        side = "hot" if measured.mean > asked else "cold"
        return Verdict("Temperature", "look", f"{said}: about as asked (T = {asked:g}), perhaps a little {side}.")
    says = f"{said}: too uncertain to compare with T = {asked:g}."
    return Verdict("Temperature", "unknown", says, "Run longer.")


def agreement(chains: int, draws: int, worst: float, share: float, why: str = "") -> Verdict:
    """Whether chains agree on what they predict: R̂ on the probe set, the largest and the share above the limit."""
    if math.isnan(worst):
        reason = why or (
            "one chain has nothing to agree with" if chains < 2 else f"{draws} samples a chain are too few"
        )
        return Verdict("Agreement of chains", "unknown", f"Not known: {reason}.", "Sample four chains.")
    if share <= DISAGREEMENT and math.isfinite(worst):
        says = f"The {chains} chains agree: R̂ ≤ {RHAT_LIMIT} on {1 - share:.0%} of the probe set, {worst:.2f} at most."
        return Verdict("Agreement of chains", "good", says)
    level: Level = "bad" if worst > 1.2 else "look"
    if math.isinf(worst):
        says = f"Chains are stuck, each at another place, and R̂ is above {RHAT_LIMIT} on {share:.0%} of the probe set."
        return Verdict("Agreement of chains", "bad", says, "Raise the learning rate or the temperature.")
    says = f"Chains disagree: R̂ = {worst:.2g} at worst, above {RHAT_LIMIT} on {share:.0%} of the probe set: run longer."
    return Verdict("Agreement of chains", level, says, "More steps; or a cyclical schedule, to visit more modes.")


def effective(samples: int, worth: float) -> Verdict:
    """How many independent samples the correlated ones are worth (the median over the probe set)."""
    about = "Effective samples"
    if samples == 1:
        return Verdict(about, "unknown", "One set of weights: it can't tell what it does not know about itself.")
    if not math.isfinite(worth):
        return Verdict(about, "unknown", f"Not known: {samples} samples are too few to tell.", "Keep more samples.")
    said = f"{samples} samples are worth {worth:.0f} independent ones"
    if worth >= ENOUGH_SAMPLES:
        return Verdict(about, "good", f"{said}: enough to predict with.")
    return Verdict(about, "look", f"{said}: averages over them are still rough.", "Run longer.")


def settled(traces: Sequence[Stationarity]) -> Verdict:
    """Whether loss and temperature drift."""
    known = [trace for trace in traces if trace.stationary is not None]
    if not known:
        return Verdict("Drift", "unknown", "Not known: the traces are too short to tell.", "Keep more samples.")
    moving = [trace for trace in known if not trace.stationary]
    if not moving:
        return Verdict("Drift", "good", "None seen: the beginning of the traces looks like their end.")
    worst = max(moving, key=lambda trace: abs(trace.z))
    says = (
        f"The {worst.trace} of chain {worst.chain} still drifts, from {worst.early:.3g} to {worst.late:.3g}"
        f"{f', and {len(moving) - 1} more traces' if len(moving) > 1 else ''}: the burn-in was too short."
    )
    return Verdict("Drift", "look", says, "Run longer, with a longer burn-in.")


class Chance(NamedTuple):
    """What honest confidence shows by chance: mean and deviation of the calibration error, deviation of the gap."""

    error: float
    spread: float
    gap: float


def chance_level(bins: Reliability) -> Chance:
    """In a bin of n examples accuracy − p is about N(0, σ² = p(1−p)/n), so its size is σ√(2/π) ± σ√(1 − 2/π)."""
    p, n = bins.confidence.double(), bins.size.double()
    weighted = (p * (1 - p) / n).sqrt() * n / n.sum()  # the share of a bin × its σ
    norm = float(weighted.square().sum().sqrt())
    return Chance(math.sqrt(2 / math.pi) * float(weighted.sum()), math.sqrt(1 - 2 / math.pi) * norm, norm)


def calibration(error: float, confidence: float, accuracy: float, chance: Chance) -> Verdict:
    """Whether confidence is honest: an error and a gap within two deviations of what chance makes are no evidence."""
    said = f"confidence {confidence:.2f}, accuracy {accuracy:.2f}, calibration error {error:.3f}"
    within = error <= chance.error + 2 * chance.spread and abs(confidence - accuracy) <= 2 * chance.gap
    if within or error <= 0.01:
        return Verdict("Calibration", "good", f"Confidence is honest, as far as these data can tell: {said}.")
    level: Level = "bad" if error > 0.1 and confidence > accuracy else "look"
    if confidence > accuracy:
        return Verdict("Calibration", level, f"Too sure of itself: {said}.", "More samples, or a wider prior.")
    return Verdict("Calibration", level, f"Too cautious: {said}.", "More data or a narrower prior.")


def interval_coverage(inside: float, asked: float, examples: int) -> Verdict:
    """Whether intervals of probability `asked` hold that share of the targets, within two binomial errors."""
    error = math.sqrt(asked * (1 - asked) / examples)
    said = f"{inside:.0%} of the targets lie in their {asked:.0%} intervals"
    if abs(inside - asked) <= max(2 * error, 0.02):
        return Verdict("Calibration", "good", f"Uncertainty is honest, as far as these data can tell: {said}.")
    if inside < asked:
        return Verdict("Calibration", "bad" if inside < asked - 0.15 else "look", f"Too sure of itself: {said}.")
    return Verdict("Calibration", "look", f"Too cautious: {said}.")


def foreign(found: Mapping[str, Mapping[str, Detection]]) -> list[Verdict]:
    """Whether uncertainty tells inputs of another kind, for each such set."""
    if not found:
        advice = 'Give inputs of another kind: lv.evaluate(…, ood={"name": inputs}).'
        return [Verdict("Foreign inputs", "unknown", "Not known: no foreign inputs were given.", advice)]
    verdicts = []
    for name, by in found.items():
        best = max(by, key=lambda score: by[score].auroc)
        auroc, fpr = by[best].auroc, by[best].fpr95
        said = f"AUROC {auroc:.2f} by {best}; finding 95 % of them takes {fpr:.0%} of the test inputs along"
        if auroc >= 0.9:
            verdicts.append(Verdict("Foreign inputs", "good", f"Notices {name}: {said}."))
        elif auroc >= 0.7:
            verdicts.append(Verdict("Foreign inputs", "look", f"Notices some of {name}: {said}."))
        else:
            verdicts.append(Verdict("Foreign inputs", "bad", f"Does not notice {name}: {said}."))
    return verdicts


def attack_name(attack: Attack) -> str:
    """Its kind and size: "FGSM(0.1)"."""
    return f"{type(attack).__name__}({attack.eps:g})"


def attacked(name: str, result: Attacked) -> Verdict:
    """What is left of the accuracy under an attack, and whether the attack is noticed."""
    best = max(result.detection, key=lambda score: result.detection[score].auroc)
    auroc = result.detection[best].auroc
    said = (
        f"Under {name} accuracy falls from {result.clean_accuracy:.0%} to {result.accuracy:.0%}; attacked inputs are "
        f"told from clean ones with AUROC {auroc:.2f} (by {best})."
    )
    kept = result.accuracy / max(result.clean_accuracy, 1e-9)
    level: Level = "good" if kept >= 0.9 else "look" if kept >= 0.5 or auroc >= 0.9 else "bad"
    return Verdict("Attack", level, said)


def against(other: str, nll: Interval) -> Verdict:
    """Whether this run predicts better than another: the difference of the NLL, other − this, with its interval."""
    side = "lower" if nll.value >= 0 else "higher"
    low, high = (nll.low, nll.high) if nll.value >= 0 else (-nll.high, -nll.low)
    said = f"NLL {side} by {abs(nll.value):.3f} nats (interval {low:.3f} to {high:.3f})".replace("-", "−")
    if not nll.excludes_zero:
        return Verdict("Comparison", "unknown", f"No difference from {other} can be told: {said}.", "More test data.")
    if nll.value > 0:
        return Verdict("Comparison", "good", f"Better than {other}: {said}.")
    return Verdict("Comparison", "bad", f"Worse than {other}: {said}.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

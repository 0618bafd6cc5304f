"""All temperature readings of a run beside its target temperature, and what they say: judged by the worst of them.

A mean over all weights can be on target while stiff directions are too hot and soft ones too cold. So a run is on
target only if both thermometers are and no tensor, and no direction that was measured, is significantly off. Many
readings are compared at once, so intervals are widened (Bonferroni): together they contain the truth in 95 % of runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from langevin.core.statistics import Estimate
from langevin.diagnostics.directions import Direction

TOLERANCE = 0.1  # relative to the target temperature, as in `find_lr`
FAR = 5  # times the target: too hot, even if the standard error is unknown or as large
UNKNOWN = Estimate(math.nan, math.nan)


class Judgement(NamedTuple):
    """A level, a sentence with the numbers, and advice, if any."""

    level: Literal["good", "warning", "bad", "unknown"]
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Temperatures:
    """The readings of a run's thermometers; unknown ones are NaN."""

    target: float
    virial: Estimate
    gradient: Estimate = UNKNOWN
    stiffest: Estimate = UNKNOWN
    kinetic: Estimate = UNKNOWN
    kinetic_by_construction: bool = False
    virial_by_tensor: dict[str, Estimate] = field(default_factory=dict)
    gradient_by_tensor: dict[str, Estimate] = field(default_factory=dict)
    softest: list[Direction] = field(default_factory=list)  # softest first, if they were measured

    def known(self) -> dict[str, Estimate]:
        """All readings that have an error, by what they are of."""
        found = {"virial": self.virial, "gradient": self.gradient, "stiffest direction": self.stiffest}
        found |= {f"virial, {name}": value for name, value in self.virial_by_tensor.items()}
        found |= {f"gradient, {name}": value for name, value in self.gradient_by_tensor.items()}
        found |= {f"softest direction {i}": found.temperature for i, found in enumerate(self.softest, 1)}
        return {name: value for name, value in found.items() if value.known}

    def judge(self) -> Judgement:
        """Whether the chains sample at the target temperature."""
        if not math.isfinite(self.virial.mean) and not self.gradient.known:
            return Judgement("unknown", "No temperature was measured.", "Sample more steps after the burn-in.")
        main = {"virial": self.virial, "gradient": self.gradient}
        found = "Temperature " + ", ".join(
            f"{_short(value)} ({name})" for name, value in main.items() if math.isfinite(value.mean)
        )
        if not math.isfinite(self.target):
            return Judgement("unknown", f"{found}; the target temperature of a custom sampler is unknown.")
        readings = self.known()
        uncertain = not self.virial.known or 2 * self.virial.error > self.virial.mean
        if math.isfinite(self.virial.mean) and uncertain and self.virial.mean > FAR * self.target:
            message = f"{found}: far too hot, target {self.target:g}."
            return Judgement("bad", message, "Lower the learning rate or increase the batch size.")
        if not readings:
            message = f"{found}, target {self.target:g}; the chains are too short for a standard error."
            return Judgement("unknown", message, "Run longer, or more chains.")
        return self._compare(found, readings)

    def _compare(self, found: str, readings: dict[str, Estimate]) -> Judgement:
        wide = 2 * _quantile(1 - 0.025 / len(readings)) / _quantile(0.975)
        low = {name: value.mean - wide * value.error for name, value in readings.items()}
        high = {name: value.mean + wide * value.error for name, value in readings.items()}
        least, most = self.target * (1 - TOLERANCE), self.target * (1 + TOLERANCE)
        hot = max(low, key=lambda name: low[name])
        cold = min(high, key=lambda name: high[name])
        if low[hot] > most and high[cold] < least:
            message = f"{found}: {_named(hot, readings)} is too hot and {_named(cold, readings)} too cold"
            advice = "Lower the learning rate or increase the batch size, and run longer."
            return Judgement("bad", f"{message}, target {self.target:g}.", advice)
        if low[hot] > most:
            stiff = hot == "gradient" and "virial" in low and low["virial"] <= most
            which = "stiff directions are " if stiff else _subject(hot, readings)
            message = f"{found}: {which}too hot, target {self.target:g}."
            return Judgement("bad", message, "Lower the learning rate or increase the batch size.")
        if high[cold] < least:
            soft = cold == "virial" and "gradient" in high and high["gradient"] >= least
            which = "soft directions are " if soft else _subject(cold, readings)
            message = f"{found}: {which}too cold, target {self.target:g}; the chains have not spread yet."
            return Judgement("bad", message, "Run longer, with a longer burn-in.")
        return self._not_off(found, {name: readings[name] for name in ("virial", "gradient") if name in readings})

    def _not_off(self, found: str, readings: dict[str, Estimate]) -> Judgement:
        """Nothing is significantly off; are the two thermometers certain enough to say that they are on target?"""
        least, most = self.target * (1 - TOLERANCE), self.target * (1 + TOLERANCE)
        certain = {name: r for name, r in readings.items() if 2 * r.error <= TOLERANCE * self.target}
        if not certain:
            message = f"{found}: too uncertain to compare with the target ({self.target:g})."
            return Judgement("unknown", message, "Run longer, or more chains.")
        inside = [least <= r.mean <= most or abs(r.mean - self.target) <= 3 * r.error for r in certain.values()]
        if all(inside):
            unsure = next((name for name in readings if name not in certain), None)
            other = "" if unsure is None else f"; the {unsure} one is too uncertain to tell"
            return Judgement("good", f"{found}: on target ({self.target:g}){other}.")
        farthest = max(certain.values(), key=lambda r: abs(r.mean - self.target))
        side = "hot" if farthest.mean > self.target else "cold"
        return Judgement("warning", f"{found}: close to the target ({self.target:g}), perhaps a little {side}.")

    def text(self) -> str:
        """All readings, by what they are of; of tensors, the three that are farthest from the target."""
        lines = [f"target       {self.target:g}", f"virial       {self.virial}", f"gradient     {self.gradient}"]
        if math.isfinite(self.stiffest.mean):
            lines.append(f"gradient, along the stiffest direction  {self.stiffest}")
        lines += [
            f"virial, along a soft direction (standard deviation {soft.std:.2g})  {soft.temperature}"
            for soft in self.softest
        ]
        for kind, each in (("virial", self.virial_by_tensor), ("gradient", self.gradient_by_tensor)):
            known = {name: value for name, value in each.items() if value.known}
            off = sorted(known, key=lambda name: -abs(known[name].mean - self.target) / max(known[name].error, 1e-12))
            lines += [f"{kind}, {name}  {known[name]}" for name in off[:3] if len(each) > 1]
        if math.isfinite(self.kinetic.mean):
            by = " (by construction of the thermostat)" if self.kinetic_by_construction else ""
            lines.append(f"kinetic      {self.kinetic}{by}")
        return "\n".join(lines)


def _short(value: Estimate) -> str:
    digits = 2 if not 0 < abs(value.mean) < 0.2 else 1 - math.floor(math.log10(abs(value.mean)))
    error = f"{value.error:.{digits}f}" if value.known else "unknown"
    return f"{value.mean:.{digits}f} ± {error}"


def _named(name: str, readings: dict[str, Estimate]) -> str:
    return f"{name} at {_short(readings[name])}"


def _subject(name: str, readings: dict[str, Estimate]) -> str:
    return "" if name in ("virial", "gradient") else f"{_named(name, readings)} is "


def _quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))

"""What to write where a verdict says to run longer: the call, by what a run by autopilot had.

The rate of a sampler that adapts it, and that of SGHMC by the noise of gradients, follow from the budget, so what is
too hot needs a larger one as well. That of `find_lr` does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langevin.diagnostics.verdict import ENOUGH_SAMPLES, Finding

_LONGER, _SLOWER = "Run longer", "Lower the learning rate"
_MOST = 20  # times as long


def with_call(finding: Finding, manifest: Mapping[str, Any], ess: float) -> Finding:
    """The finding, with the call that runs longer, if that is its advice and the run is by autopilot.

    `ess` are the effective samples that there are; NaN if unknown.
    """
    about = manifest.get("autopilot")
    if not isinstance(about, Mapping):
        return finding
    if finding.advice.startswith(_SLOWER) and _rate_follows(about.get("plan", {})):
        finding = replace(finding, advice=f"{_LONGER}, with a longer burn-in")
    if not finding.advice.startswith(_LONGER):
        return finding
    needed = ENOUGH_SAMPLES / ess if ess > 0 else 1.0
    times = int(min(max(2, math.ceil(1.2 * needed)), _MOST))
    if (call := _call(about, manifest, times, burn_in="burn-in" in finding.advice)) is None:
        return finding
    return replace(finding, advice=f"{finding.advice.rstrip('.')}: {call}.")


def _rate_follows(plan: Mapping[str, Any]) -> bool:
    """Whether a larger budget gives another rate."""
    if "lr" in plan.get("options", {}) or plan.get("steps") is not None:
        return False
    return bool(plan.get("full_batch")) or plan.get("sampler") == "SGHMC"


def _call(about: Mapping[str, Any], manifest: Mapping[str, Any], times: int, *, burn_in: bool) -> str | None:
    """The corrected call. A run that stopped by itself would stop there again, so it is extended by steps."""
    plan, looks = about.get("plan"), about.get("looks")
    if not isinstance(plan, Mapping):
        return None
    taken = manifest.get("settings", {}).get("steps")
    if plan.get("steps") is not None:
        return f"lv.sample(posterior, data, steps={times * plan['steps']})"
    by_itself = isinstance(looks, list) and len(looks) >= 2 and all(look.get("enough") for look in looks[-2:])
    if by_itself and not burn_in and isinstance(taken, int):
        if plan.get("temperature") == "auto":
            return f"lv.sample(posterior, data, steps={times * taken}), which are those after burn-in"
        return f"lv.resume(run, posterior, data, steps={times * taken})"
    if (budget := _budget(plan, about.get("steps"), times)) is None:
        return None
    return f'lv.sample(posterior, data, budget="{budget}")'


def _budget(plan: Mapping[str, Any], steps: Any, times: int) -> str | None:
    """So many times what there was, in its own unit; steps, if none was given."""
    if plan.get("seconds") is not None:
        seconds = times * plan["seconds"]
        return f"{math.ceil(seconds / 60)} min" if seconds >= 120 else f"{math.ceil(seconds)} s"
    if plan.get("gradients") is not None:
        return f"{times * plan['gradients']} gradients"
    if plan.get("times") is not None:
        return f"{times * plan['times']:g}x"
    if not isinstance(steps, int):
        return None
    return f"{times * steps} steps"

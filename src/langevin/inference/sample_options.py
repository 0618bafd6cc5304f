"""The sampler's options among the arguments of `sample`: what they are, and what is refused."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from langevin.inference.steppers import SamplerLike
from langevin.samplers import SAMPLERS, Sampler

_ALONE = ("temperature",)  # options that need no sampler


def chain_temperatures(options: Mapping[str, Any]) -> list[float] | None:
    """Those of the chains, in turn, if several are given."""
    given = options.get("temperature")
    if isinstance(given, str):
        raise ValueError(
            f'temperature={given!r}: give a number. temperature="auto" is for the autopilot, which chooses lr and '
            f'steps too: lv.sample(posterior, data, temperature="auto").'
        )
    if not isinstance(given, list | tuple):
        return None
    if not given or not all(isinstance(t, int | float) and t >= 0 for t in given):
        raise ValueError(f"temperature={given!r}: give a number, or one for each chain: temperature=[1, 0.3, 0.1].")
    return [float(t) for t in given]


def lacks_rate(sampler: SamplerLike, options: Mapping[str, Any]) -> bool:
    """Whether lr is left to the autopilot: it is not given, and the sampler does not adapt it by itself."""
    kind = SAMPLERS.named(sampler) if isinstance(sampler, str) else sampler
    if not (isinstance(kind, type) and issubclass(kind, Sampler)):
        return False
    return "lr" not in options and inspect.signature(kind).parameters["lr"].default is inspect.Parameter.empty


def refuse_without_sampler(options: Mapping[str, Any], steps: int | None, known: Collection[str]) -> None:
    """Raise for options of a sampler that is not named; `known` are those of `sample` itself."""
    for name, value in options.items():
        if name in _ALONE:
            continue
        given = f"{name}={value!r}"
        if close := difflib.get_close_matches(name, known, 1, cutoff=0.75):
            raise ValueError(f"lv.sample has no option {given}. Write {close[0]}=…, if that is meant.")
        if name == "lr":
            raise ValueError(
                f"lr={value!r} is given, but no sampler, and rates of one do not suit another. Leave out lr, and both "
                f"are chosen: lv.sample(posterior, data). Or name the sampler: lv.sample(posterior, data, lv.SGHMC, "
                f"lr={value!r}, steps={10_000 if steps is None else steps})."
            )
        raise ValueError(
            f"{given} is given, but no sampler that it is an option of. Name it, lv.sample(posterior, data, lv.SGHMC, "
            f"{given}), or leave both to the autopilot: lv.sample(posterior, data)."
        )

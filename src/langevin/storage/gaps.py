"""Samples that are missing. A file of samples says which sample of its chain comes before it; checkpoints and the
manifest say how many samples a chain has saved, so that the newest can't vanish unnoticed either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from langevin.errors import CorruptedFileError


class Saved(NamedTuple):
    """What a chain has saved: how many samples, whether or not they gave way to newer ones, and the last one's step."""

    number: int
    last: int


class Gap(NamedTuple):
    """Samples of a chain that were saved and are not there."""

    chain: int
    after: int  # the step of the last sample before it; 0 if there is none
    where: str

    def __str__(self) -> str:
        return f"samples of chain {self.chain} {self.where} are missing"


def read_saved(value: Any) -> Saved | None:
    """What a file says that a chain has saved, if it does."""
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int and n >= 0 for n in value)):
        raise CorruptedFileError("its count of samples is not one")
    return Saved(*value)


def saved_now(steps: Mapping[int, Iterable[int]], known: Mapping[int, Saved]) -> dict[int, Saved]:
    """What chains have saved that have samples of these steps, the newest of which may be newer than what is known."""
    found = dict(known)
    for chain, present in steps.items():
        before = known.get(chain, Saved(0, -1))
        newer = [step for step in present if step > before.last]
        found[chain] = Saved(before.number + len(newer), max([before.last, *newer]))
    return {chain: saved for chain, saved in found.items() if saved.number}


def find_gaps(
    links: Iterable[tuple[int, int, int | None]],
    steps: Mapping[int, set[int]],
    known: Mapping[int, Saved],
    keep_last: int | None,
) -> Iterator[Gap]:
    """What is missing. A link is of a file: its chain, its first step, and the step that comes before it.

    Where old samples give way to new ones (`keep_last`), the oldest of a chain are no news.
    """
    broken = set()
    for chain, first, after in links:
        if after is None or after in steps[chain]:
            continue
        before = max((step for step in steps[chain] if step < first), default=None)
        if before is not None or keep_last is None:
            broken.add(chain)
            yield Gap(chain, before or 0, f"between the steps {before or 0} and {first}")
    for chain, saved in known.items():
        present = steps.get(chain, set())
        newest = max(present, default=0)
        if saved.number and newest < saved.last:
            yield Gap(chain, newest, f"after step {newest}, up to step {saved.last},")
        elif chain not in broken:
            expected = saved.number if keep_last is None else min(saved.number, keep_last)
            there = sum(step <= saved.last or keep_last is not None for step in present)
            if there < expected:
                yield Gap(chain, 0, f"({there} of {expected} are there)")

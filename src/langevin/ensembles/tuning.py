"""What the autopilot decided, when, and why: `run.tuning`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from langevin.core import html


@dataclass(frozen=True)
class Decision:
    """One decision: at which stage and step, what was decided, and by which numbers."""

    stage: str
    step: int
    decided: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.stage}, step {self.step:,}: {self.decided}" + (f" ({self.why})" if self.why else "")


class Tuning(Sequence[Decision]):
    """The decisions of a run in order; empty for a run whose settings were all given."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self._decisions = list(decisions)

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> Tuning:
        """As a manifest has them."""
        return cls(Decision(**entry) for entry in manifest.get("tuning", []))

    def entries(self) -> list[dict[str, Any]]:
        """For a manifest."""
        return [asdict(decision) for decision in self._decisions]

    @overload
    def __getitem__(self, index: int) -> Decision: ...

    @overload
    def __getitem__(self, index: slice) -> Tuning: ...

    def __getitem__(self, index: int | slice) -> Decision | Tuning:
        return Tuning(self._decisions[index]) if isinstance(index, slice) else self._decisions[index]

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def __str__(self) -> str:
        return "\n".join(map(str, self._decisions)) or "Nothing was tuned: all settings were given."

    def _repr_html_(self) -> str:
        rows = [(d.stage, f"{d.step:,}", d.decided, d.why) for d in self._decisions]
        return html.table(repr(self), rows, ["stage", "step", "decided", "why"])

    def __repr__(self) -> str:
        return f"<Tuning of {len(self)} decisions>"

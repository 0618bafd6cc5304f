"""`langevin verify`: is every file of a run what it was when it was written?"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from langevin.errors import RunError
from langevin.storage import checkpoint_files, files, locks
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore
from langevin.storage.sample_files import UNREADABLE


@dataclass(frozen=True)
class Report:
    """What reading every byte of a run found."""

    files: int  # that were read
    samples: int  # that are intact
    problems: list[str]
    corrupted: list[Path]  # files of samples that can be quarantined


def verify(path: str | Path) -> Report:
    """Read every file of a run, compare its checksum, and tell what is wrong; nothing is changed."""
    store = _quiet(path)
    problems = [f"{file}: {why}" for file, why in store.corrupted.items()]
    corrupted = list(store.corrupted)
    sound = 0
    counts = {record.path: 0 for record in store.records() if record.path is not None}
    for record in store.records():
        counts[record.path] += 1  # type: ignore[index]
    for file, count in counts.items():
        if why := _wrong(file):
            problems.append(f"{file}: {why}")
            corrupted.append(file)
        else:
            sound += count
    fixed = [store.path / "fixed.safetensors", *_statistics(store)]
    if store.manifest.get("control_variate"):
        fixed.append(store.path / "control_variate.safetensors")
    if any(entry.get("stage") == "warm start" for entry in store.manifest.get("tuning", [])):
        fixed.append(store.path / "warm_start.safetensors")
    others = [*fixed, *checkpoint_files.files_of(store.path)]
    problems += [f"{file}: {why}" for file in others if (why := _wrong(file))]
    problems += [f"{file}: it is from another run" for file in fixed if _is_foreign(file, store)]
    problems += list(_unusable(store))
    problems += [str(gap) for gap in store.missing]
    return Report(len(counts) + len(store.corrupted) + len(others) + 1, sound, problems, corrupted)


def quarantine(path: str | Path, report: Report) -> Path:
    """Move the corrupted files of samples out of the way, to the folder that is returned; the rest is then usable."""
    with locks.holding(Path(path)) as writer, writer.root.below("quarantine") as target:
        for file in report.corrupted:
            place, number = f"{file.parent.name}-{file.name}", 1
            while target.contains(place):  # of a quarantine before this one
                number += 1
                place = f"{file.parent.name}-{file.stem}.{number}{file.suffix}"
            with writer.root.below(*file.parent.relative_to(path).parts) as folder:
                folder.move(file.name, target, place)
        return target.path


def accept_manifest(path: str | Path) -> None:
    """Sign a manifest that was edited by hand, if it is one at all."""
    store = DirectoryStore(Path(path), manifests.read(Path(path), edited=True))
    with store.writing():
        store.write_manifest()


def _quiet(path: str | Path) -> DirectoryStore:
    """The run, without warnings: what they would say is in the report."""
    with warnings.catch_warnings(action="ignore"):
        return DirectoryStore.open(path)


def _wrong(file: Path) -> str | None:
    try:
        files.check(file)
        with files.open_tensors(file):
            return None
    except OSError as error:
        return error.strerror or str(error)
    except UNREADABLE as error:
        return str(error)


def _statistics(store: DirectoryStore) -> list[Path]:
    """The file of BatchNorm statistics, where one was written; a fit with BatchNorm that is complete needs one."""
    file = store.path / "statistics.safetensors"
    settings = store.manifest.get("settings", {})
    complete = False
    if store.manifest.get("buffers"):
        with suppress(RunError):
            complete = store.checkpoint_steps().get(0) == settings.get("steps")
    return [file] if complete or os.path.lexists(file) else []


def _is_foreign(file: Path, store: DirectoryStore) -> bool:
    try:
        with files.open_tensors(file) as opened:
            return bool((opened.metadata() or {}).get("run") != store.manifest["run"])
    except (OSError, *UNREADABLE):
        return False  # which is told already


def _unusable(store: DirectoryStore) -> Iterator[str]:
    """Checkpoints that are intact, but not all that the run needs."""
    try:
        at = store.checkpoint_steps()
    except RunError as error:
        yield str(error)
        return
    method = store.manifest.get("method")
    if store.manifest.get("recorded") or (isinstance(method, dict) and method.get("name") == "Laplace"):
        return  # it can't be resumed, or takes no steps
    chains = store.manifest.get("settings", {}).get("chains")
    if isinstance(chains, int) and (lost := list(islice((c for c in range(chains) if c not in at), 10))):
        yield f"the chains {lost} have no checkpoint, so they can't be resumed"

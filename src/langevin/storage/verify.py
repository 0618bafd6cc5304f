"""`langevin verify`: is every file of a run what it was when it was written?"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from langevin.errors import RunError
from langevin.storage import files
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
    statistics = store.path.glob("statistics.safetensors")  # of a fit with BatchNorm, once it is complete
    checkpoints = (store.path / "checkpoints").glob("*.safetensors")
    others = [store.path / "fixed.safetensors", *statistics, *sorted(checkpoints)]
    problems += [f"{file}: {why}" for file in others if (why := _wrong(file))]
    problems += list(_unusable(store))
    gone = [m for m in store.missing if not store.corrupted]
    problems += [f"chain {chain}: samples between the steps {a} and {b} are missing" for chain, a, b in gone]
    return Report(len(counts) + len(store.corrupted) + len(others) + 1, sound, problems, corrupted)


def quarantine(path: str | Path, report: Report) -> Path:
    """Move the corrupted files of samples out of the way, to the folder that is returned; the rest is then usable."""
    folder = Path(path) / "quarantine"
    with _quiet(path).writing():
        folder.mkdir(exist_ok=True)
        for file in report.corrupted:
            place, number = folder / f"{file.parent.name}-{file.name}", 1
            while place.exists():  # of a quarantine before this one
                number += 1
                place = place.with_name(f"{file.parent.name}-{file.stem}.{number}{file.suffix}")
            os.replace(file, place)
    return folder


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


def _unusable(store: DirectoryStore) -> Iterator[str]:
    """Files that are intact, but from another run, or not all that it needs."""
    try:
        store.fixed()
    except RunError as error:
        if "another run" in str(error):
            yield str(error)
    try:
        at = store.checkpoint_steps()
    except RunError as error:
        yield str(error)
        return
    method = store.manifest.get("method")
    if isinstance(method, dict) and method.get("name") == "Laplace":  # it takes no steps, so there is none to resume
        return
    chains = store.manifest.get("settings", {}).get("chains")
    if isinstance(chains, int) and (lost := list(islice((c for c in range(chains) if c not in at), 10))):
        yield f"the chains {lost} have no checkpoint, so they can't be resumed"

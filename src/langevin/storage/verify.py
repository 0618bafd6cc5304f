"""`langevin verify`: is every file of a run what it was when it was written?"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from langevin.errors import RunError
from langevin.storage import files as disk
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore
from langevin.storage.samples import FOREIGN


@dataclass(frozen=True)
class Report:
    """What a look at every byte of a run found."""

    files: int  # that were looked at
    samples: int  # that are whole
    problems: list[str]
    damaged: list[Path]  # files of samples that could be set aside


def verify(path: str | Path) -> Report:
    """Read every file of a run, compare its checksum, and tell what is wrong; nothing is changed."""
    store = _quiet(path)
    problems = [f"{file}: {why}" for file, why in store.damaged.items()]
    damaged = list(store.damaged)
    sound = 0
    files = {record.path: 0 for record in store.records()}
    for record in store.records():
        files[record.path] += 1
    for file, count in files.items():
        if why := _wrong(file):
            problems.append(f"{file}: {why}")
            damaged.append(file)
        else:
            sound += count
    others = [store.path / "fixed.safetensors", *sorted((store.path / "checkpoints").glob("*.safetensors"))]
    problems += [f"{file}: {why}" for file in others if (why := _wrong(file))]
    problems += list(_unusable(store))
    gone = [m for m in store.missing if not store.damaged]
    problems += [f"chain {chain}: samples between the steps {a} and {b} are missing" for chain, a, b in gone]
    return Report(len(files) + len(store.damaged) + len(others) + 1, sound, problems, damaged)


def set_aside(path: str | Path, report: Report) -> Path:
    """Move the damaged files of samples out of the way, to the folder that is returned; the rest is then usable."""
    folder = Path(path) / "damaged"
    with _quiet(path).writing():
        folder.mkdir(exist_ok=True)
        for file in report.damaged:
            os.replace(file, folder / f"{file.parent.name}-{file.name}")
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
        disk.check(file)
        with disk.open_tensors(file):
            return None
    except OSError as error:
        return error.strerror or str(error)
    except FOREIGN as error:
        return str(error)


def _unusable(store: DirectoryStore) -> Iterator[str]:
    """What is whole, but not of this run, or not enough of it."""
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
    chains = store.manifest.get("plan", {}).get("chains")
    if isinstance(chains, int) and (lost := list(islice((c for c in range(chains) if c not in at), 10))):
        yield f"the chains {lost} have no checkpoint, so they can't go on"

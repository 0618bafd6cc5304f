"""The files of samples: what their headers say, checked against the manifest, and the index of them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from langevin.errors import CorruptedFileError
from langevin.storage import files
from langevin.storage.base import Record
from langevin.storage.folders import listed
from langevin.storage.gaps import Gap, Saved, find_gaps, saved_now

_LOOKS = 10
# what parsing arbitrary bytes can raise; errors of the system (OSError) are not the file's fault
UNREADABLE = (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError)


class SampleFile(NamedTuple):
    """The samples of one file, which come after that of step `after` of their chain (None: they are its first)."""

    records: list[Record]
    after: int | None


@dataclass
class Index:
    """What is in a run's directory."""

    records: dict[int, list[Record]] = field(default_factory=dict)  # by chain
    corrupted: dict[Path, str] = field(default_factory=dict)  # files that are not what they should be, and why
    missing: list[Gap] = field(default_factory=list)
    saved: dict[int, Saved] = field(default_factory=dict)  # what each chain has saved, missing samples included


def path_of(path: Path, chain: int, step: int) -> Path:
    """Where the file is whose first sample is of this step."""
    return path / "samples" / f"chain-{chain:04}" / f"{step:010}.safetensors"


def read_index(path: Path, manifest: dict[str, Any], known: Callable[[], Mapping[int, Saved]]) -> Index:
    """All samples of a run. While others write, those of a chain are a beginning of what it will have.

    `known` says what chains have saved; it is read first, so that whatever it counts is there. A listing made while
    files are added or give way to newer ones may lack some; what is missing is missing in two successive ones.
    """
    index = _look(path, manifest, known())
    for _ in range(_LOOKS):
        if not index.missing:
            break
        before, index = index, _look(path, manifest, known())
        if (index.missing, index.saved) == (before.missing, before.saved):
            break
        time.sleep(0.01)
    else:
        index.missing = []  # it changes from look to look: another process is writing
    return index


def read_header(path: Path, manifest: dict[str, Any]) -> SampleFile:
    """The records of a file of samples; one of `UNREADABLE` if it is none of this run in this place."""
    chain = int(path.parent.name.removeprefix("chain-"))
    with files.open_tensors(path) as file:
        metadata = file.metadata() or {}
        rows, after = files.parse(metadata["samples"]), files.parse(metadata["after"])
        if files.parse(metadata["chain"]) != chain:
            raise CorruptedFileError(f"it contains samples of chain {metadata['chain']}")
        if metadata["run"] != manifest["run"]:
            raise CorruptedFileError("it is from another run")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if shapes != {name: (len(rows), *spec["shape"]) for name, spec in manifest["tensors"].items()}:
        raise CorruptedFileError("its tensors are not those of this run")
    records = [Record(chain, row.pop("step"), path, n, row) for n, row in enumerate(rows)]
    if not records or not all(type(record.step) is int and record.step >= 0 for record in records):
        raise CorruptedFileError("its samples have no steps")
    if not all(type(value) in (int, float) for record in records for value in record.stats.values()):
        raise CorruptedFileError("its statistics are not numbers")
    if not (after is None or type(after) is int):
        raise CorruptedFileError("it does not say where it belongs")
    if path != path_of(path.parents[2], chain, records[0].step):
        raise CorruptedFileError(f"its name is that of another file; it begins with step {records[0].step}")
    return SampleFile(records, after)


def _look(path: Path, manifest: dict[str, Any], known: Mapping[int, Saved]) -> Index:
    index, found = Index(), []
    for folder in listed(path / "samples"):
        if not folder.name.startswith("chain-"):
            continue
        if not folder.is_dir():
            index.corrupted[folder] = "it is not a directory"
            continue
        for file in listed(folder, ".safetensors"):
            try:
                found.append(read_header(file, manifest))
            except FileNotFoundError:  # it gave way to newer ones
                continue
            except UNREADABLE as error:
                index.corrupted[file] = str(error) or type(error).__name__
    for sample_file in found:
        index.records.setdefault(sample_file.records[0].chain, []).extend(sample_file.records)
    steps = {chain: {record.step for record in records} for chain, records in index.records.items()}
    links = [(records[0].chain, records[0].step, after) for records, after in found]
    gaps = find_gaps(links, steps, known, manifest.get("keep_last"))
    damaged = {_chain_of(file) for file in index.corrupted}  # what these contained is missing for that reason
    index.missing = [gap for gap in gaps if gap.chain not in damaged]
    index.saved = saved_now(steps, known)
    return index


def _chain_of(file: Path) -> int | None:
    folder = file.name if file.name.startswith("chain-") else file.parent.name
    number = folder.removeprefix("chain-")
    return int(number) if number.isdecimal() else None

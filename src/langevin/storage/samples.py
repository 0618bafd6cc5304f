"""The files of samples: what their headers say, checked against the manifest, and the index of them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from langevin.errors import CorruptedFileError
from langevin.storage import files as disk

# what foreign bytes can bring forth; errors of the system (OSError) are not the file's fault
FOREIGN = (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError)


class Record(NamedTuple):
    """Where a sample is, and what was noted with it."""

    chain: int
    step: int
    path: Path
    row: int
    notes: dict[str, float]


class Shard(NamedTuple):
    """The samples of one file, which come after that of step `after` of their chain (None: they are its first)."""

    records: list[Record]
    after: int | None


@dataclass
class Index:
    """What is in a run's directory."""

    records: dict[int, list[Record]] = field(default_factory=dict)  # by chain
    damaged: dict[Path, str] = field(default_factory=dict)  # files that are not what they should be, and why
    missing: list[tuple[int, int, int]] = field(default_factory=list)  # (chain, a, b): after step a, before b, is a gap


def place(path: Path, chain: int, step: int) -> Path:
    """Where the file is whose first sample is of this step."""
    return path / "samples" / f"chain-{chain:04}" / f"{step:010}.safetensors"


def read_index(path: Path, manifest: dict[str, Any]) -> Index:
    """All samples of a run. While others write, those of a chain are a beginning of what it will have.

    A listing made while files are added may have a later one without an earlier one; a second look finds that. Where
    old samples give way to new ones (keep-last), gaps are no news.
    """
    for _ in range(3):
        index = _look(path, manifest)
        if not index.missing:
            break
    return index


def read_header(path: Path, manifest: dict[str, Any]) -> Shard:
    """The records of a file of samples; one of `FOREIGN` if it is none of this run in this place."""
    chain = int(path.parent.name.removeprefix("chain-"))
    with disk.open_tensors(path) as file:
        metadata = file.metadata() or {}
        rows, after = disk.parse(metadata["samples"]), disk.parse(metadata["after"])
        if disk.parse(metadata["chain"]) != chain:
            raise CorruptedFileError(f"it holds samples of chain {metadata['chain']}")
        if metadata["run"] != manifest["run"]:
            raise CorruptedFileError("it is of another run")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if shapes != {name: (len(rows), *spec["shape"]) for name, spec in manifest["tensors"].items()}:
        raise CorruptedFileError("its tensors are not those of this run")
    records = [Record(chain, row.pop("step"), path, n, row) for n, row in enumerate(rows)]
    if not records or not all(type(record.step) is int and record.step >= 0 for record in records):
        raise CorruptedFileError("its samples have no steps")
    if not all(type(value) in (int, float) for record in records for value in record.notes.values()):
        raise CorruptedFileError("its notes are no numbers")
    if not (after is None or type(after) is int):
        raise CorruptedFileError("it does not say where it belongs")
    if path != place(path.parents[2], chain, records[0].step):
        raise CorruptedFileError(f"its name is that of another file; it begins with step {records[0].step}")
    return Shard(records, after)


def _look(path: Path, manifest: dict[str, Any]) -> Index:
    index, shards = Index(), []
    for file in sorted((path / "samples").glob("chain-*/*.safetensors")):
        try:
            shards.append(read_header(file, manifest))
        except FileNotFoundError:  # it gave way to newer ones
            if not file.is_file() and file.exists():
                index.damaged[file] = "it is no file"
        except FOREIGN as error:
            index.damaged[file] = str(error) or type(error).__name__
    for shard in shards:
        index.records.setdefault(shard.records[0].chain, []).extend(shard.records)
    steps = {chain: {record.step for record in records} for chain, records in index.records.items()}
    for records, after in shards:
        chain, first = records[0].chain, records[0].step
        if after is not None and after not in steps[chain] and manifest.get("keep_last") is None:
            before = max((step for step in steps[chain] if step < first), default=0)
            index.missing.append((chain, before, first))
    return index

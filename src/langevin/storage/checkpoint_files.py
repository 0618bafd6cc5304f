"""The files of checkpoints: what their headers say. A file holds the chains that advanced together."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from langevin.errors import CorruptedFileError, RunError
from langevin.storage import files
from langevin.storage.base import Checkpoint
from langevin.storage.folders import Content, listed
from langevin.storage.gaps import Saved, read_saved
from langevin.storage.sample_files import UNREADABLE


class CheckpointHeader(NamedTuple):
    """The checkpoint of one chain, without its tensors."""

    path: Path
    step: int
    values: dict[str, Any]
    saved: Saved | None  # what the chain had saved by then


def file_name(chains: list[int]) -> str:
    """A name for the checkpoint of these chains, different for different ones."""
    stretch = f"{chains[0]:04}-{chains[-1]:04}"
    gaps = len(chains) < chains[-1] - chains[0] + 1
    return f"{stretch}-{zlib.crc32(repr(chains).encode()):08x}.safetensors" if gaps else f"{stretch}.safetensors"


def content(run: str, checkpoints: Mapping[int, Checkpoint], saved: Mapping[int, Saved]) -> Content:
    """What writes a file of checkpoints."""
    tensors = {f"{c}/{name}": t for c, checkpoint in checkpoints.items() for name, t in checkpoint.tensors.items()}
    values = {
        str(c): {**checkpoint.values, "step": checkpoint.step, "saved": saved.get(c)}
        for c, checkpoint in checkpoints.items()
    }
    return files.tensors(tensors, {"run": run, "chains": files.serialized(values)})


def files_of(path: Path) -> list[Path]:
    """The files of checkpoints of a run."""
    folder = path / "checkpoints"
    try:
        return listed(folder, ".safetensors")
    except OSError as error:
        raise RunError(f"{folder} can't be read: {error.strerror or error}.") from None


def newest(path: Path, run: str, before: Mapping[int, int]) -> dict[int, CheckpointHeader]:
    """The newest checkpoint of every chain; of a chain in `before`, if there is one, the newest up to that step."""
    found: dict[int, CheckpointHeader] = {}
    for file in files_of(path):
        for chain, header in read_headers(file, run).items():
            limit = before.get(chain, inf)
            if chain not in found or _rank(found[chain], limit) < _rank(header, limit):
                found[chain] = header
    return found


def saved_by(path: Path, run: str) -> dict[int, Saved]:
    """What each chain is known to have saved, from the checkpoints that can be read."""
    found: dict[int, Saved] = {}
    for file in files_of(path):
        with suppress(RunError):
            for chain, header in read_headers(file, run).items():
                if header.saved is not None:
                    found[chain] = max(header.saved, found.get(chain, header.saved), key=lambda saved: saved.last)
    return found


def read_headers(path: Path, run: str) -> dict[int, CheckpointHeader]:
    """The checkpoints in a file, by chain."""
    try:
        with files.open_tensors(path) as file:
            metadata = file.metadata() or {}
        if metadata["run"] != run:
            raise CorruptedFileError("it is from another run")
        found = {}
        for chain, values in files.decode(files.parse(metadata["chains"])).items():
            step, saved = values.pop("step"), read_saved(values.pop("saved", None))
            if type(step) is not int or step < 0:
                raise CorruptedFileError("its steps are not numbers")
            found[int(chain)] = CheckpointHeader(path, step, values, saved)
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror or error}.") from None
    except (*UNREADABLE, RecursionError) as error:
        raise RunError(f"{path} is not a checkpoint of this run: {error}.") from None
    return found


def read_tensors(path: Path) -> dict[int, dict[str, Tensor]]:
    """The tensors of the checkpoints in a file, by chain."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in files.read(path)[0].items():
        chain, _, rest = name.partition("/")
        if chain.isdecimal():
            found.setdefault(int(chain), {})[rest] = tensor
    return found


def _rank(header: CheckpointHeader, limit: float) -> tuple[bool, int]:
    return header.step <= limit, header.step

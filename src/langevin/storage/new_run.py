"""The directory of a new run: new, empty, or with nothing but what a start of ours that failed has left.

No file of anybody else's is ever removed, and samples without a manifest are never overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from langevin.errors import CorruptedFileError, RunError
from langevin.storage import files
from langevin.storage import manifest as manifests
from langevin.storage.folders import Folder, listed

_FIXED = ("fixed", "statistics", "control_variate", "warm_start", "starts", "best")
_TENSORS = {f"{name}.safetensors" for name in _FIXED}
_OURS = {"samples", "checkpoints", "writers", "lock", "tensorboard", "stages", *_TENSORS}


def check_directory(path: Path) -> None:
    """Raise unless a run may be started here."""
    if path == Path():
        raise RunError("out is empty, which would be the working directory; name a new one: out='runs/mine'.")
    if not path.exists():
        return
    if any(folder.is_dir() and listed(folder, ".safetensors") for folder in listed(path / "samples")):
        raise RunError(
            f"{path} contains samples but no manifest.json, so they can't be continued and are not overwritten. "
            f"Restore the manifest, or choose another directory: out={str(path) + '-2'!r}."
        )
    others = [entry for entry in path.iterdir() if not _may_be_ours(entry)]
    others += [file for file in _left_over(path) if not _is_ours(file)]
    if others:
        raise RunError(
            f"{path} contains files that are not a run's, such as {others[0].relative_to(path)}; a run takes a new or "
            f"an empty directory: out={str(path / 'run')!r}."
        )


def claim_directory(root: Folder) -> None:
    """Remove what a failed start has left; only under the lock. Raise if another run has started meanwhile."""
    if manifests.exists(root.path):
        raise RunError(f"Another process has just started a run in {root.path}; choose another directory.")
    for file in _left_over(root.path):
        if _is_ours(file):
            with root.below(*file.parent.relative_to(root.path).parts) as folder:
                folder.unlink(file.name)


def _may_be_ours(entry: Path) -> bool:
    beside = entry.name.startswith(".") and any(name in entry.name for name in (".safetensors.", ".json."))
    return (entry.name in _OURS or beside) and not entry.is_symlink()


def _left_over(path: Path) -> Iterator[Path]:
    """Files in the places where a start writes."""
    for file in (path / name for name in ("checkpoints", *sorted(_TENSORS))):
        if file.is_dir():
            yield from file.iterdir()
        elif file.exists():
            yield file


def _is_ours(file: Path) -> bool:
    """Whether its header says that a run of ours wrote it; or it is a file that was being written."""
    if file.is_symlink() or not file.is_file():
        return False
    if file.name.startswith("."):
        return ".safetensors." in file.name
    try:
        with files.open_tensors(file) as opened:
            return "run" in (opened.metadata() or {})
    except (OSError, CorruptedFileError):
        return False

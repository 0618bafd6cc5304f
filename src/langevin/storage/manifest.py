"""The manifest: what a run is, as JSON with a checksum. Whatever is read from it is looked at first.

It holds no path: where files are follows from the run's directory and from numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from langevin.errors import CorruptedFileError, RunError
from langevin.storage.files import dtype_of, parse
from langevin.storage.folders import read_bytes
from langevin.storage.gaps import read_saved

FORMAT = 4
READABLE = (3, FORMAT)  # format 3 has the same files, but another random stream
_NAME = "manifest.json"
_LARGEST = 64 << 20  # bytes; a network of ten thousand tensors needs one
_KINDS: dict[str, tuple[type, ...]] = {  # what the entries are, where they are there
    "run": (str,),
    "created": (str,),
    "tags": (dict,),
    "settings": (dict,),
    "sampler": (dict, type(None)),
    "schedule": (dict, bool, type(None)),
    "num_data": (int,),
    "prior": (str,),
    "weight": (int, float),
    "output": (str, int, type(None)),
    "backbone": (dict, type(None)),
    "architecture": (str,),
    "likelihood": (dict,),
    "data": (dict,),
    "sample_dtype": (str, type(None)),
    "keep_last": (int, type(None)),
    "environment": (dict,),
    "resumed": (list,),
}
_NEEDED = [name for name in _KINDS if name not in ("output", "backbone")]  # runs of earlier versions lack these
_RECIPES = ("sampler", "schedule", "likelihood", "method")


def exists(path: Path) -> bool:
    """Whether a directory contains a run."""
    try:
        return (path / _NAME).exists()
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror or error}.") from None


def text(manifest: dict[str, Any]) -> bytes:
    """The manifest as it stands in its file, with its checksum."""
    plain = json.loads(json.dumps(manifest))
    return json.dumps({**plain, "sha256": _checksum(plain)}, indent=2, ensure_ascii=False).encode()


def file(path: Path) -> Path:
    """Where the manifest of a run is."""
    return path / _NAME


def read(path: Path, *, edited: bool = False) -> dict[str, Any]:
    """The manifest of a run, checked; one that was `edited` by hand only where that is allowed."""
    place = file(path)
    try:
        manifest = parse(read_bytes(place, _LARGEST))
    except FileNotFoundError:
        raise RunError(f"{path} contains no run (there is no manifest.json).") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{place} can't be read: {error}.") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("tensors"), dict):
        raise RunError(f"{place} is not the manifest of a run.")
    if manifest.get("format") not in READABLE:
        environment = manifest.get("environment")
        writer = environment.get("langevin", "?") if isinstance(environment, dict) else "?"
        raise RunError(
            f"{path} was written in format {manifest.get('format')!r} by langevin {writer}; this version reads the "
            f"formats {' and '.join(map(str, READABLE))}. Open it with the version that wrote it."
        )
    checksum = manifest.pop("sha256", None)
    if checksum != _checksum(manifest) and not edited:
        raise RunError(
            f"{place} was changed after langevin wrote it (its checksum differs), so nothing in it can be relied on. "
            f"Put the original back; or, if the change is yours and you answer for it: langevin verify {path} "
            f"--accept-manifest."
        )
    _check(place, manifest)
    return manifest


def run_of(path: Path) -> str | None:
    """The identity of the run in a directory, if there is one that can be read."""
    with suppress(OSError, ValueError):
        found = parse(read_bytes(file(path), _LARGEST))
        if isinstance(found, dict) and isinstance(found.get("run"), str):
            return str(found["run"])
    return None


def require(path: Path, manifest: dict[str, Any], *names: str) -> None:
    """Raise if entries are missing (by default any) that are needed to go on."""
    if missing := [name for name in names or _NEEDED if name not in manifest]:
        raise RunError(f"{file(path)} lacks {', '.join(missing)}; the manifest is incomplete.")


def _checksum(manifest: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        raise RunError("The manifest is nested too deeply.") from None


def _check(place: Path, manifest: dict[str, Any]) -> None:
    wrong = [name for name, kinds in _KINDS.items() if name in manifest and type(manifest[name]) not in kinds]
    if "run" not in manifest or (type(manifest.get("keep_last")) is int and manifest["keep_last"] < 1):
        wrong.append("run" if "run" not in manifest else "keep_last")
    if not _are_inputs(manifest.get("inputs") or []):
        wrong.append("inputs")
    if not _are_counts(manifest.get("saved", {})):
        wrong.append("saved")
    wrong += [name for name in _RECIPES if not _is_recipe(manifest.get(name))]
    wrong += [f"tensors: {name}" for name, spec in manifest["tensors"].items() if not _is_spec(spec)]
    if "method" in manifest:
        wrong += [name for name in ("weights", "buffers") if not _are_names(manifest.get(name))]
        if type(manifest.get("draws")) is not int or not 1 <= manifest["draws"] < 2**31:
            wrong.append("draws")
    if wrong:
        raise RunError(f"{place} is not the manifest of a run: {wrong[0]!r} has the wrong type.")


def _are_counts(saved: Any) -> bool:
    """Whether this is what chains have saved: {"0": [100, 12000]}, a number and the last step of each."""
    if not isinstance(saved, dict) or not all(chain.isdecimal() for chain in saved):
        return False
    try:
        return all(read_saved(pair) is not None for pair in saved.values())
    except CorruptedFileError:
        return False


def _are_inputs(described: Any) -> bool:
    """Whether this describes inputs: {"tensor": ["float32", 28, 28]}, several in a list, or by name."""
    if isinstance(described, list):
        return all(map(_are_inputs, described))
    if not isinstance(described, dict) or len(described) != 1:
        return False
    if "named" in described:
        return isinstance(described["named"], dict) and all(map(_are_inputs, described["named"].values()))
    tensor = described.get("tensor")
    if not isinstance(tensor, list) or not tensor:
        return False
    return isinstance(tensor[0], str) and all(type(n) is int and n >= 0 for n in tensor[1:])


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _is_recipe(recipe: Any) -> bool:
    """Whether this may describe a sampler or the like: {"name": "SGLD", "options": {"lr": 0.1}}, or none at all."""
    if not isinstance(recipe, dict):
        return True
    return isinstance(recipe.get("name"), str | None) and isinstance(recipe.get("options", {}), dict)


def _is_spec(spec: Any) -> bool:
    """Whether this describes a tensor: {"shape": [3, 4], "dtype": "float32"}."""
    if not isinstance(spec, dict) or not isinstance(spec.get("shape"), list):
        return False
    if not all(type(n) is int and n >= 0 for n in spec["shape"]) or math.prod(spec["shape"]) >= 2**60:
        return False
    try:
        dtype_of(spec.get("dtype"))
    except ValueError:
        return False
    return True

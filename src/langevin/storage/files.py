"""Files that are there whole or not at all, and know their own checksum. Nothing is unpickled, ever.

A file of tensors is a safetensors file whose metadata hold the SHA-256 of all of its bytes, those of the checksum
itself taken as zeros. Plain values beside tensors are JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from langevin.errors import CorruptedFileError, RunError

_BLANK = "0" * 64
_LARGEST_HEADER = 100 << 20  # what safetensors itself allows
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        remedy = "make room" if error.errno in _FULL else "repair that"
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. Existing samples are unaffected; {remedy}, then "
            f"resume the run."
        ) from error


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file with its checksum."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save(plain, {**metadata, "sha256": _BLANK})
    checksum = hashlib.sha256(data).hexdigest()
    return data.replace(_BLANK.encode(), checksum.encode(), 1)  # the header comes first, so it is this one


def check(path: Path) -> None:
    """Raise `CorruptedFileError` unless the file's bytes are those that were written."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LARGEST_HEADER:
            raise CorruptedFileError("it is not a safetensors file")
        header = file.read(length)
        try:
            checksum = parse(header)["__metadata__"]["sha256"]
        except (ValueError, KeyError, TypeError):
            raise CorruptedFileError("it has no checksum") from None
        if not isinstance(checksum, str) or len(checksum) != len(_BLANK):
            raise CorruptedFileError("it has no checksum")
        digest = hashlib.sha256(length.to_bytes(8, "little"))
        digest.update(header.replace(checksum.encode(), _BLANK.encode(), 1))
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != checksum:
        raise CorruptedFileError("its bytes are not those that were written (the checksum differs)")


def open_tensors(path: Path) -> Any:
    """A safetensors file, its header read; `OSError` where the system is at fault, else `CorruptedFileError`."""
    if not path.is_file():  # a pipe would wait for ever
        raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
    with open(path, "rb"):  # safetensors does not tell a system without free descriptors from a corrupted file
        pass
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise CorruptedFileError(str(error)) from None


def read(path: Path, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors whose names begin with `prefix`, without it, and the metadata, of a file that is checked first."""
    try:
        check(path)
        with open_tensors(path) as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            tensors = {name.removeprefix(prefix): file.get_tensor(name) for name in names}
            return tensors, dict(file.metadata() or {})
    except (OSError, CorruptedFileError, SafetensorError) as error:
        raise RunError(f"{path} can't be read: {error}.") from None


def parse(text: str | bytes) -> Any:
    """JSON; a `ValueError` for whatever is none, nesting that is too deep included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(value: Any) -> Any:
    """Tensors, and dicts with keys that JSON lacks (the milestones of a schedule), as pairs; the rest as it is."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"of": type(value).__name__, "pairs": [[key, encode(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, Tensor):
        return {"of": "Tensor", "pairs": [[str(value.dtype).removeprefix("torch."), value.tolist()]]}
    return value


def serialized(values: Any) -> str:
    """Plain values as JSON; a `RunError` for what is not serializable."""
    try:
        return json.dumps(encode(values))
    except TypeError as error:
        raise RunError(
            f"The state of the sampler, of its schedule or of the data loader is not serializable: {error}. Use one "
            f"whose state consists of numbers, strings, tensors, lists and dicts."
        ) from None


def decode(value: Any) -> Any:
    """The opposite of `encode`."""
    if isinstance(value, dict):
        if set(value) == {"of", "pairs"}:
            if value["of"] == "Tensor":
                ((dtype, numbers),) = value["pairs"]
                return torch.tensor(numbers, dtype=dtype_of(dtype))
            pairs = {key: decode(item) for key, item in value["pairs"]}
            return Counter(pairs) if value["of"] == "Counter" else pairs
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of that name; a `ValueError` for any other word."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype")
    return dtype

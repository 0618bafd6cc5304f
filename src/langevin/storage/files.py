"""Files that are there whole or not at all, and know their own checksum. Nothing is unpickled, ever.

A file of tensors is a safetensors file whose metadata hold the SHA-256 of all of its bytes, those of the checksum
itself taken as zeros. It is written by hand, tensor after tensor from where they are, since `safetensors.save` needs
several times their memory. Plain values beside tensors are JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from langevin.errors import CorruptedFileError, RunError
from langevin.storage.folders import Content, Folder, open_regular, version_of

_BLANK = "0" * 64
_LARGEST_HEADER = 100 << 20  # what safetensors itself allows
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DTYPES = {  # as safetensors calls them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Rows = Tensor | Sequence[Tensor]  # a tensor, or several to be stacked along a first axis


def write(path: Path, content: Content, root: Folder | None = None) -> None:
    """Write a file whole or not at all; inside `root`, if one is given, following no link."""
    try:
        if root is None:
            with Folder.open(path.parent) as folder:
                folder.write(path.name, content)
            return
        *names, name = path.relative_to(root.path).parts
        with root.below(*names) as folder:
            folder.write(name, content)
    except OSError as error:
        remedy = "make room" if error.errno in _FULL else "repair that"
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. Existing samples are unaffected; {remedy}, then "
            f"resume the run."
        ) from error


def tensors(tensors: Mapping[str, Rows], metadata: Mapping[str, str]) -> Content:
    """What writes a file of tensors with its checksum, for `write`; nothing is copied that is on the CPU."""
    if sys.byteorder != "little":
        raise RunError("Runs are written on machines with little-endian numbers only; sample in memory: out=None.")
    rows = {name: [given] if isinstance(given, Tensor) else list(given) for name, given in tensors.items()}
    order = sorted(rows, key=lambda name: (-rows[name][0].dtype.itemsize, name))  # larger numbers first: aligned
    entries: dict[str, Any] = {"__metadata__": {"sha256": "", **metadata} | {"sha256": _BLANK}}  # it is the first
    end = 0
    for name in order:
        first, stacked = rows[name][0], not isinstance(tensors[name], Tensor)
        begin, end = end, end + first.nbytes * len(rows[name])
        shape = [len(rows[name])] * stacked + list(first.shape)
        entries[name] = {"dtype": _DTYPES[first.dtype], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)

    def fill(file: BinaryIO) -> None:
        digest = hashlib.sha256()
        parts: Iterator[Any] = chain(
            [len(header).to_bytes(8, "little"), header], *(map(_bytes, rows[name]) for name in order)
        )
        for part in parts:
            digest.update(part)
            file.write(part)
        file.seek(8 + header.index(_BLANK.encode()))
        file.write(digest.hexdigest().encode())

    return fill


def _bytes(tensor: Tensor) -> Any:
    """The memory of a tensor; of one that is elsewhere, of a copy."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def check(path: Path) -> None:
    """Raise `CorruptedFileError` unless the file's bytes are those that were written."""
    with open_regular(path) as file:
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
    while True:
        version = version_of(path)
        with open_regular(path):  # safetensors waits for a pipe, and takes a lack of descriptors for a corrupted file
            pass
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, ValueError, RuntimeError, FileNotFoundError) as error:
            if version_of(path) == version:
                raise CorruptedFileError(str(error)) from None  # else it gave way to another, or is no more


def read(path: Path, largest: float | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file, which is checked first.

    One that is larger than `largest` bytes, or than the memory that is free, is refused unread.
    """
    try:
        size, room = path.stat().st_size, free_memory()
        if size > room or (largest is not None and size > largest + _LARGEST_HEADER):
            why = "than the memory that is free" if size > room else "than all that it may contain"
            raise CorruptedFileError(f"it is larger ({size >> 20} MB) {why}")
        check(path)
        with torch.device("cpu"), open_tensors(path) as file:  # safetensors reads to torch's default device
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, CorruptedFileError, SafetensorError) as error:
        raise RunError(f"{path} can't be read: {error}.") from None


def free_memory() -> float:
    """The bytes of memory that are free, or hold copies of files; all that there is, where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(OSError, ValueError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


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
                return torch.tensor(numbers, dtype=dtype_of(dtype), device="cpu")
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

"""Directories by handle, and files that are certain to be files.

What is written goes into a directory that is held open, so that a run which is renamed, and another put in its place,
are never confused. Symbolic links inside are not followed: whoever made the directory can't direct writes elsewhere.
What is read is a regular file, never a pipe or a device, on which a process would wait for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from langevin.errors import CorruptedFileError

Content = bytes | Callable[[BinaryIO], None]  # what a file is to contain, or what writes it
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SAFE = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY  # opening a pipe does not wait
_LINK = (errno.ELOOP, errno.EMLINK)  # what O_NOFOLLOW raises
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """A directory that is held open. `path` is where it was, for messages."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.owner = os.getpid()

    @classmethod
    def open(cls, path: Path) -> Self:
        """The directory at a path of the user's, who may have put links into it."""
        return cls(path, os.open(path, _DIRECTORY))

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from every other directory, whatever their names."""
        return _identity(os.fstat(self.descriptor))

    @contextmanager
    def below(self, *names: str) -> Iterator[Folder]:
        """The directory of these names below this one, made if it is not there; none of them is a link."""
        descriptor, path = os.dup(self.descriptor), self.path
        try:
            for name in names:
                path = path / name
                try:
                    os.mkdir(name, dir_fd=descriptor)
                    os.fsync(descriptor)
                except FileExistsError:
                    pass
                try:
                    inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                except OSError as error:
                    if error.errno in (*_LINK, errno.ENOTDIR):
                        what = "it is a symbolic link or a file, not a directory; symbolic links are not followed"
                        raise NotADirectoryError(errno.ENOTDIR, what, str(path)) from None
                    raise
                os.close(descriptor)
                descriptor = inner
            yield Folder(path, descriptor)
        finally:
            os.close(descriptor)

    def write(self, name: str, content: Content, *, sync: bool = True) -> None:
        """Write a file whole or not at all: beside its place, to the disk, then renamed. A link there is replaced."""
        beside = f".{name}.{os.getpid()}"
        try:
            file = os.open(beside, os.O_WRONLY | _NEW, 0o666, dir_fd=self.descriptor)
        except FileExistsError:  # left by a process of this number that was killed, or put there by somebody
            os.unlink(beside, dir_fd=self.descriptor)
            file = os.open(beside, os.O_WRONLY | _NEW, 0o666, dir_fd=self.descriptor)
        try:
            with open(file, "wb") as stream:
                content(stream) if callable(content) else stream.write(content)
                stream.flush()
                if sync:
                    os.fsync(stream.fileno())
            os.replace(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            if sync:
                os.fsync(self.descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=self.descriptor)
            raise

    def open_file(self, name: str, flags: int) -> int:
        """The descriptor of a regular file in it; a `CorruptedFileError` if it is a link, or anything else."""
        try:
            descriptor = os.open(name, flags | _SAFE | os.O_NOFOLLOW, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in _LINK:
                raise CorruptedFileError("it is a symbolic link") from None
            raise
        return _regular(descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """What is in it, but files that are being written."""
        return [name for name in os.listdir(self.descriptor) if not name.startswith(".")]

    def contains(self, name: str) -> bool:
        """Whether there is anything of that name, a link included."""
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def move(self, name: str, target: Folder, new_name: str) -> None:
        """Move a file to another directory."""
        os.replace(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def is_at(self, path: Path) -> bool:
        """Whether this is the directory that is found at a path now."""
        return identity_of(path) == self.identity

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_directory(path: Path) -> None:
    """Make a directory with its parents, each entered into the one above it on the disk."""
    if path.is_dir():
        return
    make_directory(path.absolute().parent)
    with suppress(FileExistsError):
        path.mkdir()
    with Folder.open(path.absolute().parent) as parent:
        os.fsync(parent.descriptor)


def replace(path: Path, content: Content) -> None:
    """Write a file of the user's choice whole or not at all, and its directory if need be; a link there is replaced."""
    try:
        make_directory(path.parent)
        with Folder.open(path.parent) as folder:
            folder.write(path.name, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def identity_of(path: Path) -> tuple[int, int] | None:
    """What tells the directory at a path from all others that exist; None if there is none."""
    try:
        return _identity(os.stat(path))
    except OSError:
        return None


def version_of(path: Path) -> tuple[int, ...] | None:
    """What changes when a file gives way to another of the same name; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return *_identity(status), status.st_size, status.st_mtime_ns


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; a `CorruptedFileError` unless it is a regular one."""
    return open(_regular(os.open(path, os.O_RDONLY | _SAFE)), "rb")


def read_bytes(path: Path, largest: int) -> bytes:
    """The content of a regular file that is not larger than that; a `CorruptedFileError` otherwise."""
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise CorruptedFileError(f"it is larger than {largest >> 20} MB")
    return content


def listed(path: Path, suffix: str = "") -> list[Path]:
    """What is in a directory, sorted; nothing if there is no such directory, an `OSError` if it can't be read.

    Names that begin with a point are those of files that are being written, and left out.
    """
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return [path / name for name in sorted(names) if name.endswith(suffix) and not name.startswith(".")]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _regular(descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptedFileError("it is not a regular file")
    return descriptor

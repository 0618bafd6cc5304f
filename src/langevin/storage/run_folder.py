"""The directory of a run, to write to: the one that was opened, by the process that opened it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from langevin.errors import RunError
from langevin.storage import files, locks
from langevin.storage.folders import Content, Folder, identity_of


class RunFolder:
    """Writes to a directory as long as it is where it was; by handle, so that nothing ever goes into another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: locks.Writer | None = None
        self._identity = identity_of(path)

    @contextmanager
    def holding(self, chains: Collection[int] | None) -> Iterator[Folder]:
        """Hold these chains (all of the run if None), so that no other process writes them."""
        if identity_of(self.path) not in (self._identity, None):
            raise RunError(self._replaced())
        with locks.holding(self.path, chains) as self.writer:
            try:
                self._check(self.writer.root)
                yield self.writer.root
            finally:
                self.writer = None

    def write(self, path: Path, content: Content) -> None:
        """Write a file in it whole or not at all."""
        with self._opened() as root:
            files.write(path, content, root)

    def unlink(self, path: Path) -> None:
        """Remove a file in it."""
        with self._opened() as root, root.below(*path.parent.relative_to(self.path).parts) as folder:
            folder.unlink(path.name)

    @contextmanager
    def _opened(self) -> Iterator[Folder]:
        if self.writer is not None:
            if not self.writer.is_mine():
                raise RunError(f"{self.path} is written by the process that this one was forked from, not by this one.")
            self._check(self.writer.root)
            yield self.writer.root
            return
        try:
            root = Folder.open(self.path)
        except OSError as error:
            raise RunError(f"{self.path} can't be written to: {error.strerror or error}.") from None
        with root:
            self._check(root)
            yield root

    def _check(self, root: Folder) -> None:
        if root.identity != self._identity or not root.is_at(self.path):
            raise RunError(self._replaced())

    def _replaced(self) -> str:
        return (
            f"{self.path} was moved, deleted or replaced while it was in use, so this run stops; nothing was written "
            f"to what is there now. Resume the run from where it was moved to."
        )

    def __getstate__(self) -> dict[str, object]:
        """A copy is not the writer."""
        return {**self.__dict__, "writer": None}

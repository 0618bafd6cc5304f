"""Registries: names to classes. What is registered is exported, offered by the command line, cited and tested."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Names to classes (or functions) of one kind.

    >>> greetings = Registry("greeting")
    >>> @greetings.register
    ... class Hello: ...
    >>> greetings.named("hello").__name__
    'Hello'
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, entry: T) -> T:
        """Add an entry under its own name in lower case; a decorator."""
        name = entry.__name__.lower()  # type: ignore[attr-defined]
        if name in self and self[name] is not entry:
            raise ValueError(f"A {self.kind} called {name!r} is registered already: {self[name]!r}.")
        self[name] = entry
        return entry

    def named(self, name: str) -> T:
        """The entry of that name, in any case."""
        if name.lower() not in self:
            raise ValueError(f"{name!r} is not a registered {self.kind}; choose one of {', '.join(self)}.")
        return self[name.lower()]

    def exports(self) -> dict[str, T]:
        """The entries by the names that they have in Python."""
        return {entry.__name__: entry for entry in self.values()}  # type: ignore[attr-defined]

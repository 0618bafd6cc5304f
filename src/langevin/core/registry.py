"""Registries map names to classes. A registered class is exported, available on the command line, cited and tested."""

from __future__ import annotations

from typing import Generic, TypeVar

from langevin.core.arguments import NATURAL, validated_init

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Maps names to classes (or functions) of one kind.

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
        """Add an entry under its name in lower case; usable as a decorator. Its constructor is validated."""
        name = entry.__name__.lower()  # type: ignore[attr-defined]
        if name in self and self[name] is not entry:
            raise ValueError(f"A {self.kind} called {name!r} is registered already: {self[name]!r}.")
        if isinstance(entry, type) and name not in self:
            ours = entry.__module__.startswith("langevin.")  # whose numbers are 0 or more
            validated_init(numbers=NATURAL if ours else None)(entry)
        self[name] = entry
        return entry

    def named(self, name: str) -> T:
        """The entry of that name, case-insensitive."""
        if name.lower() not in self:
            raise ValueError(f"{name!r} is not a registered {self.kind}; choose one of {', '.join(self)}.")
        return self[name.lower()]

    def exports(self) -> dict[str, T]:
        """The entries by their Python names."""
        return {entry.__name__: entry for entry in self.values()}  # type: ignore[attr-defined]

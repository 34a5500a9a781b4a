"""A table of things that users name from outside: a flag, a config file, a saved model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from gemel.errors import InputError

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Names to things, with an error that helps: what was asked, what is close, what exists."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, *names: str) -> Callable[[Thing], Thing]:
        """Decorator: register the thing below under each of `names`."""

        def register(thing: Thing) -> Thing:
            for name in names:
                assert name not in self._things, f"two {self.kind}s are called {name!r}"
                self._things[name] = thing
            return thing

        return register

    def __getitem__(self, name: str) -> Thing:
        if name in self._things:
            return self._things[name]
        close = get_close_matches(name, self._things, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(sorted(self._things))}")

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(self._things)

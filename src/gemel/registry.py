"""Tables of things that users name from outside: in a flag, a config file, a saved model.

A lazy table reads its names from the files of a folder and imports a file only when its entry is used, so that a new
objective, task or verb is one new file and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

from gemel.errors import GemelError, InputError, did_you_mean

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Names to entries; an unknown name raises an error with the closest match and all names.

    Without `package` the table has what was added with `add`. With it, each module of the package is an entry as well:
    `margin_mse.py` is `margin-mse`. The module adds its entry under that name, or has it as its `attribute`.
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str | None = None,
        aliases: Mapping[str, str] | None = None,
        skip: tuple[str, ...] = (),
        attribute: str | None = None,
        named_by_file: bool = True,
        error: type[GemelError] = InputError,
    ) -> None:
        """`kind`: what error messages call an entry. `package`: where its modules are, as in an import.

        `aliases`: further names, each with the module that adds it. `skip`: modules of the package that are no
        entries. `attribute`: the name of the entry in its module, where modules do not call `add`. `named_by_file`
        False: names are what the modules add, any number each; the file that is called like a name is looked at first.
        """
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        self._package = package
        self._aliases = dict(aliases or {})
        self._skip = {"__init__", *skip}
        self._attribute = attribute
        self._named_by_file = named_by_file
        self._error = error

    def add(self, *names: str) -> Callable[[Entry], Entry]:
        """Decorator: add what is defined below it under each of `names`."""

        def register(entry: Entry) -> Entry:
            for name in names:
                assert name not in self._entries, f"two entries for the {self.kind} {name!r}"
                self._entries[name] = entry
            return entry

        return register

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries and (self._named_by_file or name not in self):
            files = self._files()
            if name not in files:
                raise self._unknown(name)
            module = import_module(f"{self._package}.{files[name].stem}")
            if self._attribute:
                return getattr(module, self._attribute)  # type: ignore[no-any-return]
            assert name in self._entries, f"{module.__name__} does not add the {self.kind} {name!r}"
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if not self._named_by_file and name not in self._entries:
            self._import_for(str(name))
        return name in self._entries or name in self._files()

    def __iter__(self) -> Iterator[str]:
        if not self._named_by_file:
            self._import_for(None)
        return iter(sorted({*self._entries, *self._files()}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _import_for(self, name: str | None) -> None:
        """Import the module that is called like `name`; if it does not add it, or for no name, all of them."""
        modules = self._modules()
        own = str(name).replace("-", "_")
        if own in modules:
            import_module(f"{self._package}.{own}")
        if name not in self._entries:
            for module in modules:
                import_module(f"{self._package}.{module}")

    def about(self, name: str) -> str:
        """The first line of the docstring of an entry's module, read from its file without importing it."""
        files = self._files()
        if name not in files:
            raise self._unknown(name)
        with files[name].open(encoding="utf-8") as source:
            return source.readline().strip().strip('"')

    def _files(self) -> dict[str, Path]:
        """Name to the file of its module. Read each time: a table is used a few times in a process."""
        if not self._named_by_file:
            return {}
        modules = self._modules()
        names = {module.replace("_", "-"): module for module in modules} | self._aliases
        return {name: modules[module] for name, module in names.items()}

    def _modules(self) -> dict[str, Path]:
        if self._package is None:
            return {}
        folders = import_module(self._package).__path__
        modules = {file.stem: file for folder in folders for file in Path(folder).glob("*.py")}
        return {name: file for name, file in sorted(modules.items()) if name not in self._skip}

    def _unknown(self, name: str) -> GemelError:
        hint = did_you_mean(name, self)
        return self._error(f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(self)}")

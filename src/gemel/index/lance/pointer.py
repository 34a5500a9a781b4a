"""index.json: which table of an index is the current one, and what may lie beside it in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.index.lance import snapshot
from gemel.index.lance.disk import write_json
from gemel.index.lance.recovery import versions_in
from gemel.index.port import FORMAT

_NAME = "index.json"
_OURS = ("rows-*.lance", "rows-*.readers", "lock", "*.lock", "cache", "damaged", f"{_NAME}*")
_TABLE = re.compile(r"rows-([1-9]\d{0,8})\.lance")


@dataclass(frozen=True)
class Pointer:
    """`current` counts from 1; the table that a migration builds has the next number."""

    current: int

    @property
    def table(self) -> str:
        return f"rows-{self.current}.lance"

    @property
    def next(self) -> Pointer:
        return Pointer(self.current + 1)

    @classmethod
    def of(cls, table: str) -> Pointer | None:
        """The pointer to a table of this name; None: no table of an index is called so."""
        found = _TABLE.fullmatch(table)
        return None if found is None else cls(int(found[1]))


class Folder:
    """An index on the local disk."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser().absolute()
        self.name = path
        self.cache = self.path / "cache"

    def read(self) -> Pointer | None:
        """None: nothing is there, or what a killed `create` left. Anything else is an error that says what."""
        if self.path.is_file():
            raise InputError(f"{self.name} is a file, an index is a folder. Name another place")
        content = self._content()
        if content is None:
            self._refuse_foreign()
            if not (tables := self.tables()):
                return None
            content = self._content()  # another process may have made all of it since the first look
            if content is None:
                raise without_pointer(self.name, tables, f"its {_NAME} is missing")
        return parsed(content, self.name, self.tables())

    def tables(self) -> list[str]:
        """Names of the tables that may hold something, oldest first; one that a killed `create` left is none."""
        found = [path for path in self.path.glob("rows-*.lance") if Pointer.of(path.name) and _begun(path)]
        return [path.name for path in sorted(found, key=lambda path: int(path.stem.removeprefix("rows-")))]

    def _content(self) -> bytes | None:
        try:
            return (self.path / _NAME).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorkError(
                f"the index {self.name} cannot be read: {error.strerror}. Check its rights"
            ) from error

    def write(self, pointer: Pointer) -> None:
        try:
            write_json(self.path / _NAME, content(pointer))
        except OSError as error:
            raise WorkError(
                f"could not write to {self.name}: {error.strerror}. Nothing was changed"
            ) from error

    def prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkError(
                f"cannot make the folder {self.name}: {error.strerror}. Check its rights"
            ) from error

    def uri(self, table: str) -> str:
        return str(self.path / table)

    def has(self, table: str) -> bool:
        return (self.path / table).exists()

    def readers(self, table: str) -> Path:
        """The file that open handles to a table hold a shared lock of."""
        return self.path / f"{Path(table).stem}.readers"

    def drop(self, table: str) -> None:
        shutil.rmtree(self.path / table, ignore_errors=True)
        self.readers(table).unlink(missing_ok=True)
        snapshot.drop(self.cache, Path(table).stem)
        for cache in self.cache.glob(f"{Path(table).stem}-*"):
            shutil.rmtree(cache, ignore_errors=True)

    def set_aside(self, tables: Sequence[str]) -> list[str]:
        """These tables leave the index for its folder `damaged`; what was done."""
        kept = self.path / "damaged"
        for table in tables:
            kept.mkdir(exist_ok=True)
            (self.path / table).rename(kept / f"{table}.{os.urandom(4).hex()}")
        return [f"moved {table} to {kept}" for table in tables]

    def _refuse_foreign(self) -> None:
        try:
            there = set(self.path.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorkError(f"the folder {self.name} cannot be read: {error.strerror}") from error
        ours: Iterable[Path] = (path for pattern in _OURS for path in self.path.glob(pattern))
        if foreign := sorted(path.name for path in there - set(ours)):
            raise InputError(
                f"{self.name} is no index: it has no {_NAME} but holds {foreign[0]!r}. Name an empty or a new folder"
            )


def content(pointer: Pointer) -> dict[str, Any]:
    """What is written, in a folder and in a bucket."""
    return {"what": "a gemel index", "format": FORMAT, "current": pointer.current}


def parsed(content: bytes, name: str, tables: Sequence[str]) -> Pointer:
    """InputError for what gemel did not write, or a newer one did; `tables`: what lies beside it."""
    try:
        about = json.loads(content.decode("utf-8"))
        version, current = int(about["format"]), int(about["current"])
        if current < 1:
            raise ValueError(f"there is no table {current}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if tables:
            raise without_pointer(name, tables, f"its {_NAME} is damaged") from error
        raise InputError(
            f"{name} is no index: its {_NAME} is not one of gemel's. Name another place"
        ) from error
    if version > FORMAT:
        raise InputError(
            f"{name} is an index of format {version}, this gemel reads up to {FORMAT}. "
            "Upgrade it: pip install --upgrade gemel"
        )
    return Pointer(current)


def without_pointer(name: str, tables: Sequence[str], why: str) -> InputError:
    """The error for tables without the file that says which of them counts."""
    return NoPointer(
        f"the index {name} cannot be opened: {why}, but {', '.join(tables)} is there. Nothing was changed. "
        f"Rebuild it: gemel index repair {name}, or gemel.repair_index"
    )


class NoPointer(InputError):
    """Tables are there, and nothing says which of them is the current one."""


def _begun(table: Path) -> bool:
    """More than `create` makes: a second version, or a file of rows."""
    return bool(set(versions_in(table)) - {1}) or any((table / "data").glob("*"))

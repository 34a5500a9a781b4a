"""index.json: which table of an index is the current one, and what may lie beside it in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.index.lance.disk import write_json
from gemel.index.port import FORMAT

_NAME = "index.json"
_OURS = ("rows-*.lance", "lock", "next.lock", "cache", "damaged", f"{_NAME}*")


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
        try:
            text = (self.path / _NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            self._refuse_foreign()
            return None
        except OSError as error:
            raise WorkError(
                f"the index {self.name} cannot be read: {error.strerror}. Check its rights"
            ) from error
        return parsed(text, self.name)

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

    def drop(self, table: str) -> None:
        shutil.rmtree(self.path / table, ignore_errors=True)
        for cache in self.cache.glob(f"{Path(table).stem}-*"):
            shutil.rmtree(cache, ignore_errors=True)

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


def parsed(text: str, name: str) -> Pointer:
    """InputError for what gemel did not write, or a newer one did."""
    try:
        about = json.loads(text)
        version, current = int(about["format"]), int(about["current"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{name} is no index: its {_NAME} is not one of gemel's. Name another place"
        ) from error
    if version > FORMAT:
        raise InputError(
            f"{name} is an index of format {version}, this gemel reads up to {FORMAT}. "
            "Upgrade it: pip install --upgrade gemel"
        )
    return Pointer(current)

"""What the readers share: a row, a row that is bad, which columns count, and the stream of rows."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gemel.errors import InputError

BAD_SHOWN = 5  # messages kept of the rows that `skip_bad` leaves out


@dataclass(frozen=True, slots=True)
class Row:
    """A text and the name it keeps in every output."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be used, and where it stands."""

    place: int | str
    """The line, from 1; in parquet, which has no lines, "row 12", from 0 as in the ids."""
    reason: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that the caller asked for; None: our choice. `where` is the input, for messages."""

    text: str | None
    id: str | None
    where: str

    def choose_text(self, columns: list[str], candidates: list[str]) -> str:
        """The asked column, else "text", else the only one of `candidates` (those that hold strings)."""
        if self.text is not None:
            return self.text
        if "text" in columns:
            return "text"
        rest = [name for name in candidates if name != self.id]
        if len(rest) == 1:
            return rest[0]
        raise InputError(
            f"{self.where}: which column holds the texts? Name it with text_column (--text-column). "
            f"Columns: {listed(columns)}"
        )

    def check(self, columns: list[str]) -> None:
        """Refuse names that the input does not have."""
        for name in (self.text, self.id):
            if name is not None and name not in columns:
                raise InputError(f"{self.where}: no column {name!r}. Columns: {listed(columns)}")


class Rows(Iterator[Row]):
    """The rows of one input, in order. Knows how far it is and how many bad rows it left out."""

    def __init__(
        self, rows: Iterator[Row | Bad], where: str, skip_bad: bool, fraction: Callable[[], float | None]
    ) -> None:
        self.skipped = 0
        """Bad rows left out so far; always 0 without `skip_bad`."""
        self.bad: list[str] = []
        """The first few of them, as `file:line: reason`."""
        self._rows = rows
        self._where = where
        self._skip_bad = skip_bad
        self._fraction = fraction

    @property
    def fraction(self) -> float | None:
        """The part of the input that was read, 0 to 1; None when nobody knows (standard input)."""
        return self._fraction()

    def __next__(self) -> Row:
        while True:
            try:
                item = next(self._rows)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(f"{self._where}: the gzip data is damaged or cut off ({error})") from error
            if isinstance(item, Row):
                return item
            message = f"{self._where}:{item.place}: {item.reason}"
            if not self._skip_bad:
                raise InputError(message)
            self.skipped += 1
            if len(self.bad) < BAD_SHOWN:
                self.bad.append(message)


def row_of(
    value: object, text_column: str | None, id_column: str | None, row: int, place: int | str
) -> Row | Bad:
    """One row out of a parsed JSON value (or a parquet row as a dict)."""
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    text = fields.get(text_column) if text_column is not None and fields else value
    if not isinstance(text, str):
        if not isinstance(value, dict):
            return Bad(place, f"expected an object or a string, got {kind_of(value)}")
        if text_column not in fields:
            return Bad(place, f"no field {text_column!r}; this row has {listed(list(fields))}")
        return Bad(place, f"{text_column!r} must be a string, got {kind_of(text)}")
    if id_column is None:
        return Row(str(row), text)
    if id_column not in fields:
        return Bad(place, f"no field {id_column!r} for the id; this row has {listed(list(fields))}")
    name = fields[id_column]
    if isinstance(name, bool) or not isinstance(name, str | int):
        return Bad(place, f"{id_column!r} must be a string or a whole number, got {kind_of(name)}")
    return Row(str(name), text)


def kind_of(value: object) -> str:
    """What a value out of JSON is called in a message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"

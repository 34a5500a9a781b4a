"""Files as tables, streamed: the names of the columns, then some of the columns row by row.

Reads .tsv (no quoting), .csv, .jsonl, .txt (one column, "text"), each also .gz, and .parquet.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from gemel.errors import InputError
from gemel.files.lines import (
    Bad,
    Columns,
    LineFile,
    bare,
    csv_records,
    existing_file,
    format_of,
    kind_of,
    listed,
    parse_json,
    tsv_records,
)
from gemel.files.rows import parquet_columns, parquet_records, parquet_types

_JSON_LOOKED_AT = 20  # rows of a .jsonl file that are searched for names of columns


class Record(NamedTuple):
    """The asked columns of one row, and where it stands."""

    place: int | str
    values: tuple[Any, ...]
    """Strings; out of JSON and parquet also numbers, lists and None."""


class RecordFile:
    """One file with named columns. Nothing is kept in memory; each call reads the file anew."""

    def __init__(self, path: str | Path) -> None:
        self.path = existing_file(Path(path))
        self.kind = format_of(self.path)
        if self.kind == "parquet" and self.path.suffix.lower() == ".gz":
            raise InputError(f"{self.path}: parquet is compressed inside; unpack the .gz first")

    def columns(self, *, rows: int = _JSON_LOOKED_AT) -> list[str]:
        """Names of the columns, in the order of the file; for .jsonl those of the first `rows` rows."""
        if self.kind == "parquet":
            return parquet_columns(self.path)
        if self.kind == "txt":
            return ["text"]
        names = list(self._json_types(rows)) if self.kind == "jsonl" else self._header()
        if not names:
            raise InputError(f"{self.path} is empty: expected names of columns and rows")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"{self.path} has two columns {twice[0]!r}. Rename one of them")
        return names

    def types(self) -> dict[str, set[Any]]:
        """Every column with the types of its values, nulls left out. A .jsonl file is read to its end for that."""
        if self.kind == "parquet":
            return {name: {kind} for name, kind in parquet_types(self.path).items()}
        found = self._json_types(None) if self.kind == "jsonl" else {}
        return found or {name: {str} for name in self.columns()}

    def text_column(self, asked: Columns) -> str:
        """The column with the texts, by the rule of `read_rows`; of .jsonl the first object decides."""
        if self.kind == "jsonl":
            first = next((row for _, row in self._json_rows() if isinstance(row, dict | str)), {})
            fields = {"text": first} if isinstance(first, str) else first
            return asked.choose_text(list(fields), [name for name in fields if isinstance(fields[name], str)])
        names = self.columns()
        strings = [name for name, kinds in self.types().items() if kinds == {str}]
        return asked.choose_text(names, strings)

    def records(self, names: Sequence[str], *, optional: Collection[str] = ()) -> Iterator[Record | Bad]:
        """These columns of every row, in the order of `names`; a row of .jsonl without an optional one has None."""
        try:
            yield from self._records(names, optional)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip data is damaged or cut off ({error})") from error

    def good_records(self, names: Sequence[str]) -> Iterator[Record]:
        """`records`, where the first bad row raises an InputError that names file and line."""
        for record in self.records(names):
            if isinstance(record, Bad):
                raise self._error(record)
            yield record

    def rows(self) -> Iterator[tuple[int | str, dict[str, Any]]]:
        """The line and all columns of every row; rows of .jsonl may have different ones. A bad row raises."""
        if self.kind != "jsonl":
            names = self.columns()
            for line, values in self.good_records(names):
                yield line, dict(zip(names, values, strict=True))
            return
        try:
            for line, row in self._json_rows():
                if isinstance(row, dict | str):
                    yield line, {"text": row} if isinstance(row, str) else row
                else:
                    kind = f"expected an object or a string, got {kind_of(row)}"
                    raise self._error(row if isinstance(row, Bad) else Bad(line, kind))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip data is damaged or cut off ({error})") from error

    def _error(self, bad: Bad) -> InputError:
        return InputError(f"{self.path}:{bad.place}: {bad.reason}")

    def _records(self, names: Sequence[str], optional: Collection[str]) -> Iterator[Record | Bad]:
        if self.kind == "parquet":
            for place, values in parquet_records(self.path, names):
                yield values if isinstance(values, Bad) else Record(place, values)
        elif self.kind == "txt":
            for number, line in enumerate(LineFile(self.path).lines(), 1):
                yield line if isinstance(line, Bad) else Record(number, (bare(line),) * len(names))
        elif self.kind == "jsonl":
            yield from _json_records(self._json_rows(), names, optional)
        else:
            yield from _table_records(self._fields(), self.columns(), names)

    def _fields(self) -> Iterator[tuple[int, list[str] | Bad]]:
        lines = LineFile(self.path).lines()
        return tsv_records(lines) if self.kind == "tsv" else csv_records(lines)

    def _header(self) -> list[str]:
        try:
            place, header = next(self._fields(), (1, []))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip data is damaged or cut off ({error})") from error
        if isinstance(header, Bad):
            raise InputError(f"{self.path}:{place}: {header.reason}")
        return header

    def _json_rows(self) -> Iterator[tuple[int, object]]:
        for number, line in enumerate(LineFile(self.path).lines(), 1):
            if isinstance(line, Bad):
                yield number, line
            elif line.strip(" \t\r\n"):
                yield number, parse_json(line, number)

    def _json_types(self, rows: int | None) -> dict[str, set[Any]]:
        """Names and types in the first `rows` rows; None: in all."""
        found: dict[str, set[Any]] = {}
        try:
            for place, row in islice(self._json_rows(), rows):
                if isinstance(row, list | int | float) or row is None:
                    what = type(row).__name__
                    raise InputError(f"{self.path}:{place}: expected an object with named fields, got {what}")
                fields = {"text": row} if isinstance(row, str) else row if isinstance(row, dict) else {}
                for name, value in fields.items():
                    kinds = found.setdefault(name, set())
                    if value is not None:
                        kinds |= types_of(value)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip data is damaged or cut off ({error})") from error
        return found


def types_of(value: object) -> set[Any]:
    """The type of a value; of a list `list[str]` and the like for what is in it, `list` if that is nothing."""
    if not isinstance(value, list):
        return {type(value)}
    inside = {type(each) for each in value if each is not None}
    return {list[kind] for kind in inside} or {list}  # type: ignore[valid-type]


def _table_records(
    rows: Iterable[tuple[int, list[str] | Bad]], header: list[str], names: Sequence[str]
) -> Iterator[Record | Bad]:
    places = [header.index(name) for name in names]
    pick = itemgetter(*places) if len(places) > 1 else lambda fields: (fields[places[0]],)
    rows = iter(rows)
    next(rows)
    for place, fields in rows:
        if isinstance(fields, Bad):
            yield fields
        elif len(fields) == len(header):
            yield Record(place, pick(fields))
        elif fields != [""]:  # an empty line is no row
            yield Bad(place, f"{len(fields)} fields, but the first line names {len(header)} columns")


def _json_records(
    rows: Iterable[tuple[int, object]], names: Sequence[str], optional: Collection[str]
) -> Iterator[Record | Bad]:
    needed = [name for name in names if name not in optional]
    for place, row in rows:
        if isinstance(row, Bad):
            yield row
            continue
        fields = {"text": row} if isinstance(row, str) else row
        if not isinstance(fields, dict):
            yield Bad(place, f"expected an object with named fields, got {type(row).__name__}")
            continue
        missing = [name for name in needed if name not in fields]
        if missing:
            yield Bad(place, f"no field {missing[0]!r}; this row has {listed(list(fields))}")
        else:
            yield Record(place, tuple(fields.get(name) for name in names))

"""Labelled data from files: named columns out of TSV, CSV or JSON lines, each also .gz. Errors name file and line.

TSV is read as it stands, without quoting: a tab ends a field and a quote is a quote.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError

ENDINGS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class DataTable:
    """Columns of strings, all of the same length."""

    path: Path
    columns: Mapping[str, tuple[str, ...]]
    lines: tuple[int, ...] = ()
    """The line of the file in which each row begins."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def texts(self, *names: str) -> list[str]:
        """The first column of these names that is there: `texts("sentence1", "left")`."""
        for name in names:
            if name in self.columns:
                return list(self.columns[name])
        raise InputError(
            f"{self.path} needs a column {' or '.join(map(repr, names))}; it has {', '.join(self.columns)}"
        )

    def has(self, name: str) -> bool:
        return name in self.columns

    def place(self, row: int) -> str:
        """`file:line` of a row, for errors."""
        return f"{self.path}:{self.lines[row] if self.lines else row + 2}"

    def numbers(self, *names: str) -> NDArray[np.float64]:
        """The same as numbers; a value that is none is named with its line."""
        values = np.empty(len(self))
        for row, text in enumerate(self.texts(*names)):
            try:
                values[row] = float(text)
            except ValueError:
                raise InputError(f"{self.place(row)}: {text!r} is not a number") from None
            if not np.isfinite(values[row]):
                raise InputError(f"{self.place(row)}: {text!r} is not a finite number")
        return values


def is_table(path: Path) -> bool:
    """True for a file that `read_table` reads."""
    return path.name.removesuffix(".gz").endswith(ENDINGS)


def dataset_name(path: Path) -> str:
    """The file's name without its endings: what results call the data set."""
    name = path.name.removesuffix(".gz")
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def read_table(path: str | Path) -> DataTable:
    """The whole file, by columns."""
    path = Path(path)
    rows = list(_lines_of(path, _content(path)))
    if not rows:
        raise InputError(f"{path} is empty: expected a first line with column names")
    header, body = rows[0].fields, rows[1:]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns {twice[0]!r}. Rename one of them")
    if not body:
        raise InputError(f"{path} has column names but no rows")
    columns = zip(*(row.fields for row in body), strict=True)
    return DataTable(path, dict(zip(header, columns, strict=True)), tuple(row.line for row in body))


def columns_of(path: Path) -> list[str]:
    """The names of the columns. Whether the rows are sound is not looked at."""
    first = next(_lines_of(path, _content(path)), None)
    if first is None:
        raise InputError(f"{path} is empty: expected a first line with column names")
    return first.fields


def _content(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"no data file {path}. Give a {', '.join(ENDINGS)} file, or such a file with .gz")
    if not is_table(path):
        raise InputError(
            f"{path} is not {', '.join(ENDINGS)} (or .gz of these), so it cannot be read as a table"
        )
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.name.endswith(".gz") else content
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def fingerprint(*columns: Iterable[object]) -> str:
    """A short hash of the data that an evaluation used: results with the same one may be compared."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update("\x1f".join(map(str, column)).encode() + b"\x1e")
    return digest.hexdigest()[:16]


class _Row(NamedTuple):
    line: int
    fields: list[str]


def _lines_of(path: Path, text: str) -> Iterator[_Row]:
    """The names of the columns, then the rows, all of the same width."""
    name = path.name.removesuffix(".gz")
    read = _json_rows if name.endswith(".jsonl") else _tsv_rows if name.endswith(".tsv") else _csv_rows
    width = None
    for row in read(path, text):
        width = width or len(row.fields)
        if len(row.fields) != width:
            raise InputError(f"{path}:{row.line}: {len(row.fields)} fields, but the first line has {width}")
        yield row


def _tsv_rows(path: Path, text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        plain = line.removesuffix("\r")
        if plain.strip(" "):
            yield _Row(number, plain.split("\t"))


def _csv_rows(path: Path, text: str) -> Iterator[_Row]:
    reader, before = csv.reader(io.StringIO(text, newline=""), strict=True), 0
    try:
        for fields in reader:
            if fields:
                yield _Row(before + 1, fields)
            before = reader.line_num  # a quoted field may hold line breaks
    except csv.Error as error:
        raise InputError(f"{path}:{before + 1}: {error}") from error


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    names: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: expected an object with named fields")
        if not names:
            names = list(row)
            yield _Row(number, names)
        missing = [name for name in names if name not in row]
        if missing:
            raise InputError(f"{path}:{number}: no field {missing[0]!r}")
        yield _Row(number, [_as_text(row[name]) for name in names])


def _as_text(value: object) -> str:
    """A JSON value as a table's cell: null is empty, true is 1."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(int(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

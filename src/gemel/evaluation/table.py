"""Labelled data from files: named columns out of TSV, CSV or JSON lines, each also .gz. Errors name file and line.

TSV is read as it stands, without quoting: a tab ends a field and a quote is a quote.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError

ENDINGS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class DataTable:
    """Columns of strings, all of the same length."""

    path: Path
    columns: Mapping[str, tuple[str, ...]]

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

    def numbers(self, *names: str) -> NDArray[np.float64]:
        """The same as numbers; a value that is none is named with its line."""
        values = np.empty(len(self))
        for row, text in enumerate(self.texts(*names)):
            try:
                values[row] = float(text)
            except ValueError:
                raise InputError(f"{self.path}:{row + 2}: {text!r} is not a number") from None
            if not np.isfinite(values[row]):
                raise InputError(f"{self.path}:{row + 2}: {text!r} is not a finite number")
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
    if not path.is_file():
        raise InputError(f"no data file {path}. Give a {', '.join(ENDINGS)} file, or such a file with .gz")
    if not is_table(path):
        raise InputError(
            f"{path} is not {', '.join(ENDINGS)} (or .gz of these), so it cannot be read as a table"
        )
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.name.endswith(".gz") else content
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    rows = _json_rows(path, text) if ".jsonl" in path.name else _plain_rows(path, text)
    header = next(rows, None)
    if header is None:
        raise InputError(f"{path} is empty: expected a first line with column names")
    body = list(rows)
    if not body:
        raise InputError(f"{path} has column names but no rows")
    return DataTable(path, dict(zip(header, zip(*body, strict=True), strict=True)))


def _plain_rows(path: Path, text: str) -> Iterator[Sequence[str]]:
    if ".tsv" in path.name:
        rows: Iterator[Sequence[str]] = (
            line.removesuffix("\r").split("\t") for line in text.split("\n") if line.strip()
        )
    else:
        rows = (row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row)
    width = None
    try:
        for number, row in enumerate(rows, start=1):
            width = width or len(row)
            if len(row) != width:
                raise InputError(f"{path}:{number}: {len(row)} fields, but the first line has {width}")
            yield row
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from error


def _json_rows(path: Path, text: str) -> Iterator[Sequence[str]]:
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
            yield names
        missing = [name for name in names if name not in row]
        if missing:
            raise InputError(f"{path}:{number}: no field {missing[0]!r}")
        yield [
            value if isinstance(value, str) else json.dumps(value) for value in (row[name] for name in names)
        ]

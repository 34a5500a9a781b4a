"""Labelled data from files: named columns out of TSV, CSV or JSON lines, each also .gz. Errors name file and line.

TSV is read as it stands, without quoting: a tab ends a field and a quote is a quote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.text.records import RecordFile
from gemel.text.rows import Bad

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
    file = _file(Path(path))
    names = file.columns(rows=1)
    places: list[int] = []
    rows: list[list[str]] = []
    for record in file.records(names):
        if isinstance(record, Bad):
            raise InputError(f"{path}:{record.place}: {record.reason}")
        places.append(int(record.place))
        rows.append([_as_text(value) for value in record.values])
    if not rows:
        raise InputError(f"{path} has column names but no rows")
    return DataTable(file.path, dict(zip(names, zip(*rows, strict=True), strict=True)), tuple(places))


def columns_of(path: Path) -> list[str]:
    """The names of the columns. Whether the rows are sound is not looked at."""
    return _file(path).columns()


def _file(path: Path) -> RecordFile:
    if not path.is_file():
        raise InputError(f"no data file {path}. Give a {', '.join(ENDINGS)} file, or such a file with .gz")
    if not is_table(path):
        raise InputError(
            f"{path} is not {', '.join(ENDINGS)} (or .gz of these), so it cannot be read as a table"
        )
    return RecordFile(path)


def fingerprint(*columns: Iterable[object]) -> str:
    """A short hash of the data that an evaluation used: results with the same one may be compared."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update("\x1f".join(map(str, column)).encode() + b"\x1e")
    return digest.hexdigest()[:16]


def _as_text(value: object) -> str:
    """A JSON value as a table's cell: null is empty, true is 1."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(int(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

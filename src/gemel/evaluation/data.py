"""Evaluation data from files: tables and labeled pairs of TSV, CSV or JSON lines, and which files of a folder are used.

Of each data set in a folder only the test split is used: `stsb-test.tsv.gz` next to `stsb-dev.tsv.gz` is the test
split of `stsb`. Errors name file and line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.files.records import RecordFile

ENDINGS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class DataTable:
    """Columns of strings, all of the same length."""

    path: Path
    columns: Mapping[str, tuple[str, ...]]
    lines: tuple[int | str, ...] = ()
    """The line of the file in which each row begins; of Parquet the number of the row, in words."""
    left_out: tuple[str, ...] = ()
    """Data sets of the folder that were skipped because a test split exists."""

    @property
    def name(self) -> str:
        """What results call the data set."""
        return dataset_name(self.path)

    @property
    def protocol(self) -> dict[str, list[str]]:
        """What results report about the choice of files."""
        return {"left_out": list(self.left_out)} if self.left_out else {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def texts(self, *names: str) -> list[str]:
        """The first of these columns that the table has: `texts("sentence1", "left")`."""
        for name in names:
            if name in self.columns:
                return list(self.columns[name])
        raise InputError(
            f"{self.path} needs a column {' or '.join(map(repr, names))}; it has {', '.join(self.columns)}"
        )

    def has(self, name: str) -> bool:
        return name in self.columns

    def location(self, row: int) -> str:
        """`file:line` of a row, for errors."""
        return f"{self.path}:{self.lines[row] if self.lines else row + 2}"

    def numbers(self, *names: str) -> NDArray[np.float64]:
        """The first column of these names as finite numbers; an error names the line of any other value."""
        values = np.empty(len(self))
        for row, text in enumerate(self.texts(*names)):
            try:
                values[row] = float(text)
            except ValueError:
                raise InputError(f"{self.location(row)}: {text!r} is not a number") from None
            if not np.isfinite(values[row]):
                raise InputError(f"{self.location(row)}: {text!r} is not a finite number")
        return values


def is_table(path: Path) -> bool:
    """True for a file that `read_table` reads."""
    return path.name.removesuffix(".gz").endswith(ENDINGS)


def dataset_name(path: Path) -> str:
    """The file's name without its endings: what results call the data set."""
    name = path.name.removesuffix(".gz")
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def read_table(path: str | Path) -> DataTable:
    """The whole file, by columns. JSON values become strings: null is empty, true is 1."""
    file = _file(Path(path))
    names = file.columns(rows=1)
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, values in file.good_records(names):
        lines.append(int(line))
        rows.append([_as_text(value) for value in values])
    if not rows:
        raise InputError(f"{path} has column names but no rows")
    return DataTable(file.path, dict(zip(names, zip(*rows, strict=True), strict=True)), tuple(lines))


def read_parquet(paths: Sequence[Path]) -> DataTable:
    """One table in the Parquet files of a folder, which must have the same columns; values as in `read_table`."""
    names = RecordFile(paths[0]).columns()
    lines: list[str] = []
    rows: list[list[str]] = []
    for path in paths:
        file = RecordFile(path)
        if missing := [name for name in names if name not in file.columns()]:
            raise InputError(f"{path} has no column {missing[0]!r}, which {paths[0].name} has")
        for line, values in file.good_records(names):
            lines.append(f"{path.name}, {line}")
            rows.append([_as_text(value) for value in values])
    if not rows:
        raise InputError(f"{paths[0]} has column names but no rows")
    return DataTable(paths[0].parent, dict(zip(names, zip(*rows, strict=True), strict=True)), tuple(lines))


def _file(path: Path) -> RecordFile:
    if not path.is_file():
        raise InputError(f"no data file {path}. Give a {', '.join(ENDINGS)} file, or such a file with .gz")
    if not is_table(path):
        raise InputError(
            f"{path} is not {', '.join(ENDINGS)} (or .gz of these), so it cannot be read as a table"
        )
    return RecordFile(path)


def _as_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(int(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fingerprint(*columns: Iterable[object]) -> str:
    """A short hash of the data of an evaluation: results with the same hash may be compared."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update("\x1f".join(map(str, column)).encode() + b"\x1e")
    return digest.hexdigest()[:16]


_SPLIT = re.compile(r"[-_.](train|training|dev|val|valid|validation|trial|test)(?=[-_.]|$)", re.IGNORECASE)

_SHOWN = 12  # names of files in an error


@dataclass(frozen=True)
class RequiredColumns:
    """Which columns a table must have for a task."""

    fits: Callable[[Collection[str]], bool]
    description: str
    """The same in words, for an error that begins with "has the columns"."""


def with_columns(*needed: tuple[str, ...]) -> RequiredColumns:
    """One column of each tuple in `needed`, which lists names of the same thing: ("sentence1", "left")."""

    def fits(columns: Collection[str]) -> bool:
        return all(any(name in columns for name in names) for names in needed)

    return RequiredColumns(fits, ", ".join(" or ".join(map(repr, names)) for names in needed))


def tables_with(path: str | Path, *required: RequiredColumns, names: str = "") -> list[DataTable]:
    """The tables of a folder that have one of the sets of `required` columns, or the file itself, without a check.

    If the names of some of these tables match the pattern `names`, only those are used.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            f"no data at {path}. Give a {', '.join(ENDINGS)} file (also .gz), or a folder of them"
        )
    if not path.is_dir():
        return [read_table(path)]
    files = sorted(file for file in path.iterdir() if file.is_file() and is_table(file))
    fitting = [file for file in files if any(each.fits(_file(file).columns()) for each in required)]
    if not fitting:
        columns = "; or ".join(each.description for each in required)
        raise InputError(f"no table in {path} has the columns {columns}. The folder holds {_listed(files)}")
    if names:
        fitting = [file for file in fitting if re.search(names, file.name, re.IGNORECASE)] or fitting
    chosen = test_splits(fitting)
    left_out = tuple(dataset_name(file) for file in fitting if file not in chosen)
    return [replace(read_table(file), left_out=left_out) for file in chosen]


def _listed(files: Sequence[Path]) -> str:
    shown = ", ".join(file.name for file in files[:_SHOWN]) or f"no {', '.join(ENDINGS)} file"
    return f"{shown} and {len(files) - _SHOWN} more" if len(files) > _SHOWN else shown


def test_splits(files: Sequence[Path]) -> list[Path]:
    """Of each data set the files to score on: the test split, else dev, else train."""
    best: dict[str, int] = {}
    for file in files:
        name = _set_name(file)
        best[name] = min(best.get(name, 99), _rank(file))
    return [file for file in files if _rank(file) == best[_set_name(file)]]


def _rank(file: Path) -> int:
    match = _SPLIT.search(dataset_name(file))
    split = match[1].lower() if match else ""
    return 0 if split == "test" else 2 if split in ("train", "training", "trial") else 1


def _set_name(file: Path) -> str:
    """`stsb-de` of `stsb-de-test.tsv`, `sts12` of `sts12-train-MSRpar.tsv`."""
    return _SPLIT.split(dataset_name(file), maxsplit=1)[0]


# Labeled pairs of texts.

LEFT = ("sentence1", "left", "question1", "text1")

RIGHT = ("sentence2", "right", "question2", "text2")
"""Names that the columns of the first and the second text of a pair may have."""

PAIRS = with_columns(LEFT, RIGHT, ("label",))
"""The columns of a table of pairs with a label of 0 or 1."""


def binary_labels(table: DataTable) -> NDArray[np.bool_]:
    """The column `label`, which must have 0 or 1 in every row."""
    labels = table.numbers("label")
    for row, label in enumerate(labels):
        if label not in (0, 1):
            raise InputError(f"{table.location(row)}: label must be 0 or 1, got {label:g}")
    return np.asarray(labels == 1)


def connected(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The connected components of positions 0 .. size - 1; a position without a pair is a component of its own."""
    parent = list(range(size))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]  # path halving
            i = parent[i]
        return i

    for left, right in pairs:
        one, other = sorted((root(left), root(right)))
        parent[other] = one
    groups: dict[int, list[int]] = {}
    for i in range(size):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


@dataclass(frozen=True)
class LabeledPairs:
    """Distinct texts, and the distinct pairs of their positions (lower first) with label 1."""

    texts: tuple[str, ...]
    same: tuple[tuple[int, int], ...]
    rows: int
    """Rows of the file, including those with label 0, whose texts are included too."""


def read_pairs(table: DataTable) -> LabeledPairs:
    """The pairs of a table. Equal texts are one text; pairs of a text with itself are left out."""
    labels = binary_labels(table)
    index: dict[str, int] = {}
    same: dict[tuple[int, int], None] = {}
    for left, right, label in zip(table.texts(*LEFT), table.texts(*RIGHT), labels, strict=True):
        one, other = sorted((index.setdefault(left, len(index)), index.setdefault(right, len(index))))
        if label and one != other:
            same[one, other] = None
    if not same:
        raise InputError(f"{table.path} has no pair of two texts with label 1, so there is nothing to find")
    return LabeledPairs(tuple(index), tuple(same), len(table))

"""Which files of a folder are data for a task, judged by their columns."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Collection
from pathlib import Path

from gemel.errors import InputError
from gemel.evaluation.data_files import test_splits
from gemel.evaluation.table import is_table


def find_tables(path: Path, fits: Callable[[Collection[str]], bool], needs: str) -> list[Path]:
    """`path` itself if it is a file; of a folder, the tables whose columns fit, test files only where there are any.

    `needs` says in an error which columns were looked for.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"no data at {path}: give a file or a folder")
    tables = [file for file in sorted(path.iterdir()) if file.is_file() and is_table(file)]
    fitting = [file for file in tables if fits(columns_of(file))]
    if not fitting:
        raise InputError(f"no table in {path} has the columns {needs}; it has {len(tables)} tables")
    return test_splits(fitting)


def columns_of(path: Path) -> list[str]:
    """The column names of a table, by its first line only; none where that cannot be read."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="") as file
        ):
            line = file.readline().rstrip("\r\n")
        if ".jsonl" in path.name:
            row = json.loads(line)
            return list(row) if isinstance(row, dict) else []
        return line.split("\t") if ".tsv" in path.name else next(csv.reader([line]), [])
    except (OSError, EOFError, ValueError, csv.Error):
        return []

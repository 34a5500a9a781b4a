"""Which files of a folder are data of a task: tables with the right columns, and of each set its test split.

`stsb-test.tsv.gz` next to `stsb-dev.tsv.gz` is the test split of `stsb`: the others were made to train and tune on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemel.errors import InputError
from gemel.evaluation.table import ENDINGS, DataTable, dataset_name, is_table, read_table

_SPLIT = re.compile(r"[-_.](train|training|dev|val|valid|validation|trial|test)(?=[-_.]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class DataFiles:
    """The tables of a task, and the data sets that were seen and left for their test split."""

    tables: tuple[DataTable, ...]
    left_out: tuple[str, ...] = ()

    @property
    def protocol(self) -> dict[str, list[str]]:
        """What to tell about the choice."""
        return {"left_out": list(self.left_out)} if self.left_out else {}


def tables_with(path: Path, needed: Sequence[tuple[str, ...]], *, names: str = "") -> DataFiles:
    """The file itself, or the tables of a folder that have a column for each of `needed`.

    Each of `needed` lists names for the same thing, as ("sentence1", "left"). If some files' names fit the pattern
    `names`, only those count.
    """
    if not path.is_dir():
        table = read_table(path)
        for column in needed:
            table.texts(*column)  # refuses a table without it, and names what is there
        return DataFiles((table,))
    files = sorted(file for file in path.iterdir() if file.is_file() and is_table(file))
    if names:
        files = [file for file in files if re.search(names, file.name, re.IGNORECASE)] or files
    chosen = test_splits(files)
    found = [table for table in map(read_table, chosen) if _has(table, needed)]
    if not found:
        columns = ", ".join(" or ".join(map(repr, column)) for column in needed)
        held = ", ".join(file.name for file in files) or f"no {', '.join(ENDINGS)} file"
        raise InputError(f"no table in {path} has the columns {columns}. The folder holds {held}")
    return DataFiles(tuple(found), tuple(dataset_name(file) for file in files if file not in chosen))


def _has(table: DataTable, needed: Sequence[tuple[str, ...]]) -> bool:
    return all(any(table.has(name) for name in column) for column in needed)


def test_splits(files: Sequence[Path]) -> list[Path]:
    """Without the other splits of those sets that have a test split here."""
    tested = {_set_name(file) for file in files if _split(file) == "test"}
    return [file for file in files if _split(file) == "test" or _set_name(file) not in tested]


def _set_name(file: Path) -> str:
    """`stsb-de` of `stsb-de-test.tsv`, `sts12` of `sts12-train-MSRpar.tsv`."""
    return _SPLIT.split(dataset_name(file), maxsplit=1)[0]


def _split(file: Path) -> str:
    found = _SPLIT.search(dataset_name(file))
    return found[1].lower() if found else ""

"""Which files of a folder are data of a task: tables with the right columns, and of each set its test split.

`stsb-test.tsv.gz` next to `stsb-dev.tsv.gz` is the test split of `stsb`: the others were made to train and tune on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemel.errors import InputError
from gemel.evaluation.table import ENDINGS, DataTable, columns_of, dataset_name, is_table, read_table

_SPLIT = re.compile(r"[-_.](train|training|dev|val|valid|validation|trial|test)(?=[-_.]|$)", re.IGNORECASE)
_SHOWN = 12  # names of files in an error


@dataclass(frozen=True)
class Wanted:
    """What the columns of a table must be for a task."""

    fits: Callable[[Collection[str]], bool]
    said: str
    """The same in words, for an error that begins with "has the columns"."""


def with_columns(*needed: tuple[str, ...]) -> Wanted:
    """A column for each of `needed`, which lists names for the same thing, as ("sentence1", "left")."""

    def fits(found: Collection[str]) -> bool:
        return all(any(name in found for name in names) for names in needed)

    return Wanted(fits, ", ".join(" or ".join(map(repr, names)) for names in needed))


@dataclass(frozen=True)
class DataFiles:
    """The tables of a task, and the data sets that were seen and left for their test split."""

    tables: tuple[DataTable, ...]
    left_out: tuple[str, ...] = ()

    @property
    def protocol(self) -> dict[str, list[str]]:
        """What to tell about the choice."""
        return {"left_out": list(self.left_out)} if self.left_out else {}


def tables_with(path: Path, *wanted: Wanted, names: str = "") -> DataFiles:
    """The tables of a folder that are of one of the `wanted` kinds, or the file itself, whatever its columns are.

    If the names of some that fit match the pattern `names`, only those count.
    """
    if not path.exists():
        raise InputError(
            f"no data at {path}. Give a {', '.join(ENDINGS)} file (also .gz), or a folder of them"
        )
    if not path.is_dir():
        return DataFiles((read_table(path),))
    files = sorted(file for file in path.iterdir() if file.is_file() and is_table(file))
    fitting = [file for file in files if any(kind.fits(columns_of(file)) for kind in wanted)]
    if not fitting:
        said = "; or ".join(kind.said for kind in wanted)
        raise InputError(f"no table in {path} has the columns {said}. The folder holds {_listed(files)}")
    if names:
        fitting = [file for file in fitting if re.search(names, file.name, re.IGNORECASE)] or fitting
    chosen = test_splits(fitting)
    left_out = tuple(dataset_name(file) for file in fitting if file not in chosen)
    return DataFiles(tuple(read_table(file) for file in chosen), left_out)


def _listed(files: Sequence[Path]) -> str:
    shown = ", ".join(file.name for file in files[:_SHOWN]) or f"no {', '.join(ENDINGS)} file"
    return f"{shown} and {len(files) - _SHOWN} more" if len(files) > _SHOWN else shown


def test_splits(files: Sequence[Path]) -> list[Path]:
    """Of each set the split that is for scoring: test, else dev; without the others of that set."""
    best: dict[str, int] = {}
    for file in files:
        name = _set_name(file)
        best[name] = min(best.get(name, 99), _rank(file))
    return [file for file in files if _rank(file) == best[_set_name(file)]]


def _rank(file: Path) -> int:
    """0 before all others: what a set is scored on."""
    split = _split(file)
    return 0 if split == "test" else 2 if split in ("train", "training", "trial") else 1


def _set_name(file: Path) -> str:
    """`stsb-de` of `stsb-de-test.tsv`, `sts12` of `sts12-train-MSRpar.tsv`."""
    return _SPLIT.split(dataset_name(file), maxsplit=1)[0]


def _split(file: Path) -> str:
    found = _SPLIT.search(dataset_name(file))
    return found[1].lower() if found else ""

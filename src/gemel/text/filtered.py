"""Rows of a table whose other columns have given values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemel.errors import InputError
from gemel.text.records import RecordFile
from gemel.text.rows import Bad, Columns, Row


def filtered_rows(
    path: str | Path,
    where: Mapping[str, str],
    *,
    text_column: str | None = None,
    id_column: str | None = None,
) -> list[Row]:
    """The rows in which each column of `where` has its value; numbers compare as they are written.

    Without `id_column` the id is the number of the row in the file, from 0.
    """
    file = RecordFile(path)
    names = file.columns()
    columns = Columns(text_column, id_column, str(path))
    columns.check(names)
    missing = [name for name in where if name not in names]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r} to filter by. Columns: {', '.join(names)}")
    text = columns.choose_text(names, [name for name in names if name not in where])
    asked = [text, *([id_column] if id_column else []), *where]
    wanted = list(where.values())
    found = []
    for number, record in enumerate(file.records(asked)):
        if isinstance(record, Bad):
            raise InputError(f"{path}:{record.place}: {record.reason}")
        rest = record.values[len(asked) - len(wanted) :]
        if [str(value) for value in rest] != wanted:
            continue
        if not isinstance(record.values[0], str):
            raise InputError(f"{path}:{record.place}: {text!r} must be a string")
        found.append(Row(str(record.values[1]) if id_column else str(number), record.values[0]))
    return found

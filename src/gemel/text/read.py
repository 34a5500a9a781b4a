"""Files to rows, streamed: .txt, .jsonl, .csv, .tsv (each also .gz), .parquet, or standard input.

A row is one text and its id; tables with more columns are `records.py`. A bad row is `file:line: reason`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from gemel.errors import InputError
from gemel.text.lines import (
    InputFormat,
    LineFile,
    bare,
    csv_records,
    existing_file,
    format_of,
    lines_of,
    parse_json,
    tsv_records,
)
from gemel.text.read_parquet import read_parquet
from gemel.text.rows import Bad, Columns, Row, Rows, row_of

_Reader = Callable[[Iterator[str | Bad], Columns], Iterator[Row | Bad]]


def read_rows(
    path: Path | str,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    format: InputFormat | None = None,
    skip_bad: bool = False,
) -> Rows:
    """The rows of a file, or of standard input when `path` is "-" (then `format` is "txt" unless given).

    Without `id_column` the id is the row number from 0; a bad row that is skipped keeps its number.
    Without `text_column` the column is "text", else the only one that holds strings.
    """
    if format is not None and format not in get_args(InputFormat):
        raise InputError(f"unknown input format {format!r}. Known: {', '.join(get_args(InputFormat))}")
    if str(path) == "-":
        return _read_stdin(format or "txt", text_column, id_column, skip_bad)
    path = existing_file(Path(path))
    kind = format or format_of(path)
    columns = Columns(text_column, id_column, str(path))
    if kind == "parquet":
        if path.suffix.lower() == ".gz":
            raise InputError(f"{path}: parquet is compressed inside; unpack the .gz first")
        return read_parquet(path, columns, skip_bad)
    _check_columns_make_sense(kind, columns)
    file = LineFile(path)
    return Rows(_READERS[kind](file.lines(), columns), str(path), skip_bad, file.fraction)


def _read_stdin(kind: str, text_column: str | None, id_column: str | None, skip_bad: bool) -> Rows:
    if kind == "parquet":
        raise InputError("parquet cannot be read from standard input: its index is at the end. Give a file")
    columns = Columns(text_column, id_column, "<stdin>")
    _check_columns_make_sense(kind, columns)
    return Rows(_READERS[kind](lines_of(sys.stdin.buffer), columns), columns.where, skip_bad, lambda: None)


def _check_columns_make_sense(kind: str, columns: Columns) -> None:
    if kind == "txt" and (columns.text is not None or columns.id is not None):
        raise InputError(f"{columns.where}: a .txt file is a text a line and has no columns to name")


def _read_txt(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    for number, line in enumerate(lines):
        yield line if isinstance(line, Bad) else Row(str(number), bare(line))


def _read_jsonl(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Objects or bare strings. Blank lines are no rows."""
    row = 0
    text_column: str | None = None
    for place, line in enumerate(lines, 1):
        if isinstance(line, str) and not line.strip(" \t\r\n"):
            continue
        value = line if isinstance(line, Bad) else parse_json(line, place)
        if isinstance(value, dict) and text_column is None:
            strings = [name for name, field in value.items() if isinstance(field, str)]
            text_column = columns.choose_text(list(value), strings)
        yield value if isinstance(value, Bad) else row_of(value, text_column, columns.id, row, place)
        row += 1


def _read_tsv(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Tab-separated, quotes mean nothing, the first line names the columns."""
    return _read_table(tsv_records(lines), columns)


def _read_csv(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Comma-separated with double quotes; a quoted field may hold newlines. Blank lines are no rows."""
    return _read_table(csv_records(lines), columns)


def _read_table(records: Iterator[tuple[int, list[str] | Bad]], columns: Columns) -> Iterator[Row | Bad]:
    first = next(records, None)
    if first is None:
        return
    place, header = first
    if isinstance(header, Bad):
        raise InputError(f"{columns.where}:{place}: {header.reason}")
    columns.check(header)
    text_at = _position(header, columns.choose_text(header, header), columns.where)
    id_at = None if columns.id is None else _position(header, columns.id, columns.where)
    for row, (place, record) in enumerate(records):
        if isinstance(record, Bad):
            yield record
        elif len(record) != len(header):
            yield Bad(place, f"{len(record)} fields, but the first line names {len(header)} columns")
        else:
            yield Row(str(row) if id_at is None else record[id_at], record[text_at])


def _position(header: list[str], name: str, where: str) -> int:
    if header.count(name) > 1:
        raise InputError(f"{where}: {header.count(name)} columns are called {name!r}; rename all but one")
    return header.index(name)


_READERS: dict[str, _Reader] = {"txt": _read_txt, "jsonl": _read_jsonl, "csv": _read_csv, "tsv": _read_tsv}

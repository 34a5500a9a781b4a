"""Files to rows, streamed: .txt, .jsonl, .csv, .tsv (each also .gz), .parquet, or standard input.

A row is one text and its id; tables with more columns are `records.py`. A bad row is `file:line: reason`.

Parquet to rows or records, a batch at a time. The home of pyarrow on the reading side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, get_args

from gemel.errors import InputError, MissingExtra
from gemel.files.lines import (
    Bad,
    Columns,
    InputFormat,
    LineFile,
    Row,
    TextRows,
    bare,
    csv_records,
    existing_file,
    format_of,
    lines_of,
    parse_json,
    row_of,
    tsv_records,
)

_Reader = Callable[[Iterator[str | Bad], Columns], Iterator[Row | Bad]]


def read_rows(
    path: Path | str,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    format: InputFormat | None = None,
    skip_bad: bool = False,
) -> TextRows:
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
    return TextRows(_READERS[kind](file.lines(), columns), str(path), skip_bad, file.fraction)


def _read_stdin(kind: str, text_column: str | None, id_column: str | None, skip_bad: bool) -> TextRows:
    if kind == "parquet":
        raise InputError("parquet cannot be read from standard input: its index is at the end. Give a file")
    columns = Columns(text_column, id_column, "<stdin>")
    _check_columns_make_sense(kind, columns)
    return TextRows(
        _READERS[kind](lines_of(sys.stdin.buffer), columns), columns.where, skip_bad, lambda: None
    )


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

BATCH_ROWS = 1024


def read_parquet(path: Path, columns: Columns, skip_bad: bool) -> TextRows:
    file = _open(path)
    schema = file.schema_arrow
    strings = [field.name for field in schema if _holds_strings(field.type)]
    columns.check(schema.names)
    text = columns.choose_text(schema.names, strings)
    if text not in strings:
        raise InputError(f"{path}: column {text!r} holds {schema.field(text).type}, not strings")
    total, done = max(file.metadata.num_rows, 1), [0]
    rows = _parquet_rows(file, path, text, columns.id, done)
    return TextRows(rows, str(path), skip_bad, lambda: done[0] / total)


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns."""
    with _open(path) as file:
        return list(file.schema_arrow.names)


def parquet_types(path: Path) -> dict[str, Any]:
    """Each column with the type that its values have in Python: texts, numbers, bools, times, or `list[...]` of one of
    these; `object` for all others."""
    with _open(path) as file:
        return {field.name: _type_in_python(field.type) for field in file.schema_arrow}


def parquet_records(path: Path, names: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...] | Bad]]:
    """The place of each row ("row 12", from 0) and its values of these columns."""
    wanted, row = list(dict.fromkeys(names)), 0
    with _open(path) as file:
        for batch in _batches(file, path, wanted):
            columns = [_without_nanoseconds(batch.column(name)) for name in names]
            for index in range(batch.num_rows):
                place = f"row {row}"
                row += 1
                try:
                    yield place, tuple(column[index].as_py() for column in columns)
                except UnicodeDecodeError:
                    yield place, Bad(place, "not UTF-8")
                except LookupError as error:  # a dictionary that does not hold its own entries
                    raise _damaged(path, error) from error


def _open(path: Path) -> Any:  # noqa: ANN401 - a pyarrow file; pyarrow has no stubs
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("reading parquet", "pyarrow", "parquet") from error
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a parquet file that can be read ({error})") from error


def _without_nanoseconds(column: Any) -> Any:  # noqa: ANN401 - a pyarrow array; pyarrow has no stubs
    """A time as Python's datetime can hold it."""
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.unit != "ns":
        return column
    return column.cast(pa.timestamp("us", kind.tz), safe=False)


def _type_in_python(kind: Any) -> Any:  # noqa: ANN401 - a pyarrow type; pyarrow has no stubs
    import pyarrow as pa

    if _holds_strings(kind):
        return str
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return list[_type_in_python(kind.value_type)]  # type: ignore[misc]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (
        (pa.types.is_boolean, bool),
        (pa.types.is_integer, int),
        (pa.types.is_floating, float),
        (pa.types.is_date, date),
        (pa.types.is_timestamp, datetime),
    )
    return next((known for fits, known in tests if fits(kind)), object)


def _holds_strings(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow type; pyarrow has no stubs
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _batches(file: Any, path: Path, columns: list[str]) -> Iterator[Any]:  # noqa: ANN401
    """Only these columns, a batch at a time; the footer may be whole where a page is not."""
    import pyarrow as pa

    try:
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the parquet file is damaged: a page cannot be read ({error})")


def _parquet_rows(
    file: Any,  # noqa: ANN401 - a pyarrow file; pyarrow has no stubs
    path: Path,
    text: str,
    name: str | None,
    done: list[int],
) -> Iterator[Row | Bad]:
    wanted = [text] if name is None else list(dict.fromkeys([text, name]))
    with file:
        for batch in _batches(file, path, wanted):
            for index in range(batch.num_rows):
                row = done[0]
                done[0] += 1
                try:
                    fields = {column: batch.column(column)[index].as_py() for column in wanted}
                except UnicodeDecodeError:
                    yield Bad(f"row {row}", "not UTF-8")
                    continue
                except LookupError as error:
                    raise _damaged(path, error) from error
                yield row_of(fields, text, name, row, f"row {row}")

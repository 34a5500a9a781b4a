"""Parquet to rows or records, a batch at a time. The home of pyarrow on the reading side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.text.rows import Bad, Columns, Row, Rows, row_of

BATCH_ROWS = 1024


def read_parquet(path: Path, columns: Columns, skip_bad: bool) -> Rows:
    file = _open(path)
    schema = file.schema_arrow
    strings = [field.name for field in schema if _holds_strings(field.type)]
    columns.check(schema.names)
    text = columns.choose_text(schema.names, strings)
    if text not in strings:
        raise InputError(f"{path}: column {text!r} holds {schema.field(text).type}, not strings")
    total, done = max(file.metadata.num_rows, 1), [0]
    rows = _parquet_rows(file, path, text, columns.id, done)
    return Rows(rows, str(path), skip_bad, lambda: done[0] / total)


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

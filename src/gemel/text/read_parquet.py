"""Parquet to rows or records, a batch at a time. The home of pyarrow on the reading side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    rows = _parquet_rows(file, text, columns.id, done)
    return Rows(rows, str(path), skip_bad, lambda: done[0] / total)


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns."""
    with _open(path) as file:
        return list(file.schema_arrow.names)


def parquet_records(path: Path, names: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...] | Bad]]:
    """The place of each row ("row 12", from 0) and its values of these columns."""
    wanted, row = list(dict.fromkeys(names)), 0
    with _open(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            columns = [batch.column(name) for name in names]
            for index in range(batch.num_rows):
                place = f"row {row}"
                row += 1
                try:
                    yield place, tuple(column[index].as_py() for column in columns)
                except UnicodeDecodeError:
                    yield place, Bad(place, "not UTF-8")


def _open(path: Path) -> Any:  # noqa: ANN401 - a pyarrow file; pyarrow has no stubs
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("reading parquet", "pyarrow", "parquet") from error
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a parquet file that can be read ({error})") from error


def _holds_strings(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow type; pyarrow has no stubs
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _parquet_rows(file: Any, text: str, name: str | None, done: list[int]) -> Iterator[Row | Bad]:  # noqa: ANN401
    wanted = [text] if name is None else list(dict.fromkeys([text, name]))
    with file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            for index in range(batch.num_rows):
                row = done[0]
                done[0] += 1
                try:
                    fields = {column: batch.column(column)[index].as_py() for column in wanted}
                except UnicodeDecodeError:
                    yield Bad(f"row {row}", "not UTF-8")
                    continue
                yield row_of(fields, text, name, row, f"row {row}")

"""Files to rows, streamed: .txt, .jsonl, .csv, .tsv (each also .gz), .parquet, or standard input.

Lines end at "\\n" only: U+2028, \\x0b and \\x85 are part of a text. A bad row is `file:line: reason`.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast, get_args

from gemel.errors import InputError
from gemel.text.read_parquet import read_parquet
from gemel.text.rows import Bad, Columns, Row, Rows, row_of

InputFormat = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

LINE_LIMIT = 16 * 2**20  # bytes of a line (csv: of a record): a file without newlines cannot fill memory

_Reader = Callable[[Iterator[str | Bad], Columns], Iterator[Row | Bad]]
_BOM = b"\xef\xbb\xbf"
_SUFFIXES: dict[str, str] = {f".{name}": name for name in get_args(InputFormat)} | {".ndjson": "jsonl"}


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
    path = Path(path)
    if path.is_dir() or not path.exists():
        raise InputError(f"{path} is a folder, not a file" if path.is_dir() else f"no file at {path}")
    kind, packed = format or _format_of(path), path.suffix.lower() == ".gz"
    columns = Columns(text_column, id_column, str(path))
    if kind == "parquet":
        if packed:
            raise InputError(f"{path}: parquet is compressed inside; unpack the .gz first")
        return read_parquet(path, columns, skip_bad)
    _check_columns_make_sense(kind, columns)
    file = _File(path, packed)
    return Rows(file.rows(_READERS[kind], columns), str(path), skip_bad, file.fraction)


class _File:
    """A file that opens with the first row, closes after the last, and knows how far it was read."""

    def __init__(self, path: Path, packed: bool) -> None:
        self.path = path
        self.packed = packed
        self._raw: BinaryIO | None = None

    def rows(self, reader: _Reader, columns: Columns) -> Iterator[Row | Bad]:
        try:
            self._raw = self.path.open("rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        with self._raw as raw:
            yield from reader(
                _lines(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self.packed else raw), columns
            )

    def fraction(self) -> float | None:
        """By bytes on disk; None for a pipe."""
        if not self.path.is_file():
            return None
        if self._raw is None or self._raw.closed:
            return float(self._raw is not None)
        return self._raw.tell() / max(self.path.stat().st_size, 1)


def _read_stdin(kind: str, text_column: str | None, id_column: str | None, skip_bad: bool) -> Rows:
    if kind == "parquet":
        raise InputError("parquet cannot be read from standard input: its index is at the end. Give a file")
    columns = Columns(text_column, id_column, "<stdin>")
    _check_columns_make_sense(kind, columns)
    return Rows(_READERS[kind](_lines(sys.stdin.buffer), columns), columns.where, skip_bad, lambda: None)


def _format_of(path: Path) -> str:
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = _SUFFIXES.get(name.suffix.lower())
    if kind is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise InputError(
            f"cannot tell the format of {path} from its name. Known endings: {known} (and .gz after them); "
            "or name the format (--input-format)"
        )
    return kind


def _check_columns_make_sense(kind: str, columns: Columns) -> None:
    if kind == "txt" and (columns.text is not None or columns.id is not None):
        raise InputError(f"{columns.where}: a .txt file is a text a line and has no columns to name")


def _lines(stream: BinaryIO) -> Iterator[str | Bad]:
    """Each line with its ending, decoded; exactly one item a line, so that counting items counts lines."""
    number = 0
    while raw := stream.readline(LINE_LIMIT + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BOM)
            if not raw:
                return
        if len(raw) > LINE_LIMIT and not raw.endswith(b"\n"):
            while (rest := stream.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                pass
            yield Bad(number, f"the line is longer than {LINE_LIMIT:,} bytes")
            continue
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            yield Bad(number, f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}")


def _bare(line: str) -> str:
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def _read_txt(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    for number, line in enumerate(lines):
        yield line if isinstance(line, Bad) else Row(str(number), _bare(line))


def _read_jsonl(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Objects or bare strings. Blank lines are no rows."""
    row = 0
    text_column: str | None = None
    for place, line in enumerate(lines, 1):
        if isinstance(line, str) and not line.strip(" \t\r\n"):
            continue
        value = line if isinstance(line, Bad) else _parse_json(line, place)
        if isinstance(value, dict) and text_column is None:
            strings = [name for name, field in value.items() if isinstance(field, str)]
            text_column = columns.choose_text(list(value), strings)
        yield value if isinstance(value, Bad) else row_of(value, text_column, columns.id, row, place)
        row += 1


def _parse_json(line: str, place: int) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return Bad(place, f"not JSON: {error.msg} at position {error.pos}")
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        return Bad(place, f"not JSON that can be read: {error}")


def _read_tsv(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Tab-separated, quotes mean nothing, the first line names the columns."""
    records = ((n, x if isinstance(x, Bad) else _bare(x).split("\t")) for n, x in enumerate(lines, 1))
    return _read_table(records, columns)


def _read_csv(lines: Iterator[str | Bad], columns: Columns) -> Iterator[Row | Bad]:
    """Comma-separated with double quotes; a quoted field may hold newlines. Blank lines are no rows."""
    return _read_table(_csv_records(_CsvFeed(lines)), columns)


class _BadLineError(Exception):
    """Carries the reason through csv.reader."""


class _CsvFeed(Iterator[str]):
    """Lines for csv.reader. A class, since a generator that raised could not go on after a bad line."""

    def __init__(self, lines: Iterator[str | Bad]) -> None:
        self._lines = lines
        self.number = 0
        self.record_chars = 0

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if isinstance(line, Bad):
            raise _BadLineError(line.reason)
        self.record_chars += len(line)
        if self.record_chars > LINE_LIMIT:
            raise _BadLineError(
                f"the record is longer than {LINE_LIMIT:,} characters; is a quote not closed?"
            )
        return line


def _csv_records(feed: _CsvFeed) -> Iterator[tuple[int, list[str] | Bad]]:
    reader = csv.reader(feed, strict=True)
    while True:
        place = feed.number + 1
        feed.record_chars = 0
        before = csv.field_size_limit(
            LINE_LIMIT
        )  # one value for the whole process: raised for this call only
        try:
            record = next(reader)
        except StopIteration:
            return
        except (csv.Error, _BadLineError) as error:
            yield place, Bad(place, f"not CSV: {error}" if isinstance(error, csv.Error) else str(error))
            continue
        finally:
            csv.field_size_limit(before)
        if record:
            yield place, record


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

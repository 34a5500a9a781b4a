r"""What the readers share: a row, a row that is bad, which columns count, and the stream of rows.

Files to lines and fields, streamed: what the readers of texts and the readers of tables share.

Lines end at "\n" only: U+2028, \x0b and \x85 are part of a text. One item a line, good or bad, so counting counts.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from gemel.errors import InputError

BAD_SHOWN = 5  # messages kept of the rows that `skip_bad` leaves out


@dataclass(frozen=True, slots=True)
class Row:
    """A text and the name it keeps in every output."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be used, and where it stands."""

    place: int | str
    """The line, from 1; in parquet, which has no lines, "row 12", from 0 as in the ids."""
    reason: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that the caller asked for; None: our choice. `where` is the input, for messages."""

    text: str | None
    id: str | None
    where: str

    def choose_text(self, columns: list[str], candidates: list[str]) -> str:
        """The asked column, else "text", else the only one of `candidates` (those that hold strings)."""
        if self.text is not None:
            return self.text
        if "text" in columns:
            return "text"
        rest = [name for name in candidates if name != self.id]
        if len(rest) == 1:
            return rest[0]
        raise InputError(
            f"{self.where}: which column holds the texts? Name it with text_column (--text-column). "
            f"Columns: {listed(columns)}"
        )

    def check(self, columns: list[str]) -> None:
        """Refuse names that the input does not have."""
        for name in (self.text, self.id):
            if name is not None and name not in columns:
                raise InputError(f"{self.where}: no column {name!r}. Columns: {listed(columns)}")


class TextRows(Iterator[Row]):
    """The rows of one input, in order. Knows how far it is and how many bad rows it left out."""

    def __init__(
        self, rows: Iterator[Row | Bad], where: str, skip_bad: bool, fraction: Callable[[], float | None]
    ) -> None:
        self.skipped = 0
        """Bad rows left out so far; always 0 without `skip_bad`."""
        self.bad: list[str] = []
        """The first few of them, as `file:line: reason`."""
        self._rows = rows
        self._where = where
        self._skip_bad = skip_bad
        self._fraction = fraction

    @property
    def fraction(self) -> float | None:
        """The part of the input that was read, 0 to 1; None when nobody knows (standard input)."""
        return self._fraction()

    def __next__(self) -> Row:
        while True:
            try:
                item = next(self._rows)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(f"{self._where}: the gzip data is damaged or cut off ({error})") from error
            if isinstance(item, Row):
                return item
            message = f"{self._where}:{item.place}: {item.reason}"
            if not self._skip_bad:
                raise InputError(message)
            self.skipped += 1
            if len(self.bad) < BAD_SHOWN:
                self.bad.append(message)


def row_of(
    value: object, text_column: str | None, id_column: str | None, row: int, place: int | str
) -> Row | Bad:
    """One row out of a parsed JSON value (or a parquet row as a dict)."""
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    text = fields.get(text_column) if text_column is not None and fields else value
    if not isinstance(text, str):
        if not isinstance(value, dict):
            return Bad(place, f"expected an object or a string, got {kind_of(value)}")
        if text_column not in fields:
            return Bad(place, f"no field {text_column!r}; this row has {listed(list(fields))}")
        return Bad(place, f"{text_column!r} must be a string, got {kind_of(text)}")
    if id_column is None:
        return Row(str(row), text)
    if id_column not in fields:
        return Bad(place, f"no field {id_column!r} for the id; this row has {listed(list(fields))}")
    name = fields[id_column]
    if isinstance(name, bool) or not isinstance(name, str | int):
        return Bad(place, f"{id_column!r} must be a string or a whole number, got {kind_of(name)}")
    return Row(str(name), text)


def kind_of(value: object) -> str:
    """What a value out of JSON is called in a message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


InputFormat = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

LINE_LIMIT = 16 * 2**20  # bytes of a line (csv: of a record): a file without newlines cannot fill memory

_BOM = b"\xef\xbb\xbf"

_SUFFIXES: dict[str, str] = {f".{name}": name for name in get_args(InputFormat)} | {".ndjson": "jsonl"}


class LineFile:
    """A file that opens with the first line, closes after the last, and knows how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw: BinaryIO | None = None

    def lines(self) -> Iterator[str | Bad]:
        """Each line with its ending; a name that ends in .gz is unpacked."""
        try:
            self._raw = self.path.open("rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        with self._raw as raw:
            packed = self.path.suffix.lower() == ".gz"
            yield from lines_of(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw)

    def fraction(self) -> float | None:
        """By bytes on disk; None for a pipe."""
        if not self.path.is_file():
            return None
        if self._raw is None or self._raw.closed:
            return float(self._raw is not None)
        return self._raw.tell() / max(self.path.stat().st_size, 1)


def existing_file(path: Path) -> Path:
    """The path, if there is something to read at it."""
    if path.is_dir() or not path.exists():
        raise InputError(f"{path} is a folder, not a file" if path.is_dir() else f"no file at {path}")
    return path


def format_of(path: Path) -> str:
    """The format that the name of the file says, before .gz."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = _SUFFIXES.get(name.suffix.lower())
    if kind is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise InputError(
            f"cannot tell the format of {path} from its name. Known endings: {known} (and .gz after them); "
            "or name the format (--input-format)"
        )
    return kind


def lines_of(stream: BinaryIO) -> Iterator[str | Bad]:
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


def bare(line: str) -> str:
    """The line without its ending."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def parse_json(line: str, place: int) -> object:
    """The value, or a `Bad` that says why there is none."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return Bad(place, f"not JSON: {error.msg} at position {error.pos}")
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        return Bad(place, f"not JSON that can be read: {error}")


def tsv_records(lines: Iterator[str | Bad]) -> Iterator[tuple[int, list[str] | Bad]]:
    """Line number and fields; quotes mean nothing."""
    return ((n, x if isinstance(x, Bad) else bare(x).split("\t")) for n, x in enumerate(lines, 1))


def csv_records(lines: Iterator[str | Bad]) -> Iterator[tuple[int, list[str] | Bad]]:
    """Number of the first line and fields; a quoted field may hold newlines. Blank lines are no records."""
    return _csv_records(_CsvFeed(lines))


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

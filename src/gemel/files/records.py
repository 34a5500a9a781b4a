r"""RecordFile: one streaming reader for .txt, .csv, .tsv, .jsonl (each also .gz), .parquet and standard input.

Text is UTF-8 unless another encoding is named.
Lines end at "\n" only: U+2028, \x0b and \x85 are part of a text. Each line is one item, good or bad, so that counting
items counts lines; a bad row is reported as `file:line: reason`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast, get_args

from gemel.errors import InputError, MissingExtra

InputFormat = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

LINE_LIMIT = 16 * 2**20  # bytes of a line (csv: of a record): a file without newlines cannot fill memory

_SUFFIXES: dict[str, str] = {f".{name}": name for name in get_args(InputFormat)} | {".ndjson": "jsonl"}

_JSON_HEADER_ROWS = 20  # rows of a .jsonl file that are searched for names of columns

_BATCH_ROWS = 1024  # of parquet

_SAMPLE = 2**18  # bytes of a file that is not UTF-8 from which its encoding is guessed

_ENCODING: ContextVar[str] = ContextVar("encoding", default="utf-8")


@contextmanager
def reading_as(encoding: str) -> Iterator[None]:
    """In the block, files whose reader names no encoding are read as `encoding`."""
    token = _ENCODING.set(encoding)
    try:
        yield
    finally:
        _ENCODING.reset(token)


def default_encoding() -> str:
    """That of `reading_as`, else utf-8."""
    return _ENCODING.get()


def check_encoding(encoding: str) -> str:
    """The encoding, if Python knows it as one of text."""
    try:
        if isinstance("a".encode(encoding), bytes):
            return encoding
    except (LookupError, ValueError):  # not known, or one of bytes such as hex
        pass
    raise InputError(
        f"unknown encoding {encoding!r}. Known are the codecs of Python: utf-8, cp1252, utf-16, ..."
    )


class Record(NamedTuple):
    """The requested columns of one row."""

    line: int | str
    """The number of the line, from 1; in parquet, which has no lines, "row 12", from 0."""
    values: tuple[Any, ...]
    """Strings; from JSON and parquet also numbers, lists and None."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be used."""

    line: int | str
    reason: str


Choose: TypeAlias = Callable[[Mapping[str, str]], Sequence[str]]
"""From the columns of a file, each with what it contains ("string" for texts), to those that should be read."""


class RecordFile:
    """A file with named columns. Nothing is kept in memory: each call reads it again, standard input only once."""

    def __init__(self, path: str | Path, format: str | None = None, encoding: str | None = None) -> None:
        """`path` "-" is standard input. `format`: where the name does not say it; "txt" for standard input.

        `encoding`: as Python calls it; None: UTF-8, or that of `reading_as`.
        """
        self.name = "<stdin>" if str(path) == "-" else str(path)
        self.encoding = check_encoding(encoding or _ENCODING.get())
        self._read: Callable[[], float | None] = lambda: 0.0
        if str(path) == "-":
            self.path, self.kind = Path("-"), format or "txt"
            if self.kind == "parquet":
                raise InputError(
                    "parquet cannot be read from standard input: its index is at the end. Give a file"
                )
            self._read = lambda: None
            return
        self.path = existing_file(Path(path))
        self.kind = format or _format_of(self.path)
        if self.kind == "parquet":
            if self.path.suffix.lower() == ".gz":
                raise InputError(f"{self.path}: parquet is compressed inside; unpack the .gz first")
            _pyarrow()

    def fraction(self) -> float | None:
        """The part of the file that the last call has read, 0 to 1; None if unknown (standard input)."""
        return self._read()

    def columns(self, *, rows: int = _JSON_HEADER_ROWS) -> list[str]:
        """Names of the columns, in the order of the file; for .jsonl those of the first `rows` rows."""
        if self.kind == "parquet":
            with _open_parquet(self.path) as file:
                return list(file.schema_arrow.names)
        if self.kind == "txt":
            return ["text"]
        if self.kind == "jsonl":
            names = list(self._json_types(rows))
            for _, row in () if names else self._json():
                if isinstance(row, Bad):
                    raise self.error(row)
        else:
            _, names = next(self._table(), (0, []))
        if not names:
            raise no_rows(self.name)
        self._check_unique(names, names)
        return names

    def types(self) -> dict[str, set[Any]]:
        """Every column with the types of its values, nulls left out. A .jsonl file is read to its end for that."""
        if self.kind == "parquet":
            with _open_parquet(self.path) as file:
                return {field.name: {_python_type(field.type)} for field in file.schema_arrow}
        found = self._json_types(None) if self.kind == "jsonl" else {}
        return found or {name: {str} for name in self.columns()}

    def records(self, names: Sequence[str], *, optional: Collection[str] = ()) -> Iterator[Record | Bad]:
        """These columns of every row, in the order of `names`; a row of .jsonl without an optional one has None."""
        if self.kind in ("csv", "tsv"):
            self.columns()  # an empty file is an error
        return self.scan(lambda _: names, optional=optional)

    def good_records(self, names: Sequence[str]) -> Iterator[Record]:
        """`records`, where the first bad row raises an InputError that names file and line."""
        for record in self.records(names):
            if isinstance(record, Bad):
                raise self.error(record)
            yield record

    def rows(self) -> Iterator[tuple[int | str, dict[str, Any]]]:
        """The line and all columns of every row; rows of .jsonl may have different ones. A bad row raises."""
        for line, row in self.all_rows():
            if isinstance(row, Bad):
                raise self.error(row)
            yield line, row

    def all_rows(self) -> Iterator[tuple[int | str, dict[str, Any] | Bad]]:
        """`rows` with the bad ones."""
        if self.kind == "jsonl":
            yield from self._json()
            return
        names = self.columns()
        for record in self.records(names):
            if isinstance(record, Bad):
                yield record.line, record
            else:
                yield record.line, dict(zip(names, record.values, strict=True))

    def scan(self, choose: Choose, *, optional: Collection[str] = ()) -> Iterator[Record | Bad]:
        """The rows in one pass: `choose` is called once with the columns (of .jsonl: of the first row)."""
        if self.kind == "parquet":
            yield from self._parquet_records(choose)
        elif self.kind == "txt":
            names = choose({"text": "string"})
            for number, line in enumerate(self._lines(), 1):
                yield line if isinstance(line, Bad) else Record(number, (_bare(line),) * len(names))
        elif self.kind == "jsonl":
            yield from self._json_records(choose, optional)
        else:
            yield from self._table_records(choose)

    def error(self, bad: Bad) -> InputError:
        """The error for a bad row: `file:line: reason`."""
        return InputError(f"{self.name}:{bad.line}: {bad.reason}", code="GEM-304")

    def _table_records(self, choose: Choose) -> Iterator[Record | Bad]:
        with closing(self._table()) as rows:
            first = next(rows, None)
            if first is None:
                return
            header = first[1]
            names = choose(dict.fromkeys(header, "string"))
            self._check_unique(names, header)
            indices = [header.index(name) for name in names]
            for line, fields in rows:
                if isinstance(fields, Bad):
                    yield fields
                elif len(fields) == len(header):
                    yield Record(line, tuple([fields[index] for index in indices]))
                elif fields != [""]:  # an empty line is not a row
                    yield Bad(line, f"{len(fields)} fields, but the first line names {len(header)} columns")

    def _table(self) -> Generator[tuple[int, Any]]:
        """The header, then the fields of each row, with their lines."""
        lines = self._lines()
        rows = _csv_fields(lines) if self.kind == "csv" else _tsv_fields(lines)
        for number, (line, fields) in enumerate(rows):
            if number == 0 and isinstance(fields, Bad):
                raise self.error(fields)
            yield line, fields

    def _check_unique(self, names: Sequence[str], columns: Sequence[str]) -> None:
        for name in names:
            if columns.count(name) > 1:
                raise InputError(f"{self.name} has two columns {name!r}. Rename one of them")

    def _json_records(self, choose: Choose, optional: Collection[str]) -> Iterator[Record | Bad]:
        names: Sequence[str] | None = None
        for line, row in self._json():
            if isinstance(row, Bad):
                yield row
                continue
            if names is None:
                names = choose({name: kind_of(value).removeprefix("a ") for name, value in row.items()})
            missing = [name for name in names if name not in row and name not in optional]
            if missing:
                yield Bad(line, f"no field {missing[0]!r}; this row has {listed(list(row))}")
            else:
                yield Record(line, tuple(row.get(name) for name in names))

    def _json(self) -> Iterator[tuple[int, dict[str, Any] | Bad]]:
        """Objects with their lines; a string is an object with the field "text". Blank lines are not rows."""
        for number, line in enumerate(self._lines(), 1):
            if isinstance(line, str) and not line.strip(" \t\r\n"):
                continue
            value = line if isinstance(line, Bad) else _parse_json(line, number)
            if isinstance(value, str):
                yield number, {"text": value}
            elif isinstance(value, dict | Bad):
                yield number, value
            else:
                yield number, Bad(number, f"expected an object or a string, got {kind_of(value)}")

    def _json_types(self, rows: int | None) -> dict[str, set[Any]]:
        """Fields of the first `rows` rows with the types of their values; bad rows have none."""
        found: dict[str, set[Any]] = {}
        for _, row in islice(self._json(), rows):
            for name, value in row.items() if isinstance(row, dict) else ():
                kinds = found.setdefault(name, set())
                if value is not None:
                    kinds |= types_of(value)
        return found

    def _parquet_records(self, choose: Choose) -> Iterator[Record | Bad]:
        with _open_parquet(self.path) as file:
            names = choose(
                {
                    each.name: "string" if _is_string(each.type) else str(each.type)
                    for each in file.schema_arrow
                }
            )
            row, total = 0, max(file.metadata.num_rows, 1)
            self._read = lambda: row / total
            for batch in _batches(file, self.path, list(dict.fromkeys(names))):
                columns = [_without_nanoseconds(batch.column(name)) for name in names]
                for index in range(batch.num_rows):
                    line = f"row {row}"
                    row += 1
                    try:
                        yield Record(line, tuple(column[index].as_py() for column in columns))
                    except UnicodeDecodeError:
                        yield Bad(line, "not UTF-8")
                    except LookupError as error:  # a dictionary that lacks its own entries
                        raise _damaged(self.path, error) from error

    def _lines(self) -> Iterator[str | Bad]:
        """Each line with its ending; a name that ends in .gz is unpacked."""
        if self.name == "<stdin>":
            yield from self._decoded(sys.stdin.buffer)
            return
        try:
            raw = self.path.open("rb")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        size = max(self.path.stat().st_size, 1) if self.path.is_file() else None  # a pipe has no size
        self._read = lambda: None if size is None else 1.0 if raw.closed else raw.tell() / size
        with raw, self._gzip_errors():
            packed = self.path.suffix.lower() == ".gz"
            yield from self._decoded(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw)

    def _decoded(self, stream: BinaryIO) -> Iterator[str | Bad]:
        if self.encoding.lower() in ("utf-8", "utf8", "utf-8-sig"):
            yield from _decoded_lines(stream, "utf-8", self._hint)
        elif "\n".encode(self.encoding) == b"\n":
            yield from _decoded_lines(stream, self.encoding, lambda _: "")
        else:  # UTF-16, whose line feeds have other bytes
            yield from _wide_lines(stream, self.encoding)

    def _hint(self, line: bytes) -> str:
        """What to do about a line that is not UTF-8."""
        sample = line
        if self.path.is_file() and self.path.suffix.lower() != ".gz":
            with self.path.open("rb") as file:
                sample = file.read(_SAMPLE)
        guess = likely_encoding(sample) or likely_encoding(line)
        if guess is None:
            return ". Name the encoding of the file with encoding (--encoding)"
        return f". It looks like {guess}: read it with encoding={guess!r} (--encoding {guess})"

    @contextmanager
    def _gzip_errors(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip data is damaged or cut off ({error})") from error


def existing_file(path: Path) -> Path:
    """The path, if there is something to read at it."""
    if path.is_dir() or not path.exists():
        raise InputError(
            f"{path} is a folder, not a file" if path.is_dir() else f"no file at {path}", code="GEM-301"
        )
    return path


def no_rows(where: str) -> InputError:
    """The error for an input that is empty, or has only names of columns."""
    return InputError(f"{where} is empty: there are no rows to read", code="GEM-302")


def kind_of(value: object) -> str:
    """What a value from JSON is called in a message."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def listed(names: list[str]) -> str:
    """Names in quotes, for a message."""
    return ", ".join(repr(name) for name in names) or "none"


def types_of(value: object) -> set[Any]:
    """The type of a value; of a list `list[str]` and the like for its items, `list` if it has none."""
    if not isinstance(value, list):
        return {type(value)}
    inside = {type(each) for each in value if each is not None}
    return {list[kind] for kind in inside} or {list}  # type: ignore[valid-type]


def _format_of(path: Path) -> str:
    """The format that the name of the file says, before .gz."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = _SUFFIXES.get(name.suffix.lower())
    if kind is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise InputError(
            f"cannot tell the format of {path} from its name. Known endings: {known} (and .gz after them); "
            "or name the format (--input-format)",
            code="GEM-305",
        )
    return kind


def _wide_lines(stream: BinaryIO, encoding: str) -> Iterator[str | Bad]:
    """Lines of a file in UTF-16 or UTF-32; nothing can be read after bytes that are neither."""
    text = io.TextIOWrapper(stream, encoding, newline="\n")
    number = 0
    try:
        while line := text.readline(LINE_LIMIT):
            number += 1
            yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeError as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        yield Bad(number + 1, f"not {encoding}: {reason}")
    finally:
        text.detach()  # the stream is closed by its owner


def _decoded_lines(stream: BinaryIO, encoding: str, hint: Callable[[bytes], str]) -> Iterator[str | Bad]:
    """`hint`: what to do about the first line that cannot be decoded."""
    number = 0
    advice: str | None = None
    shown = encoding.upper() if encoding == "utf-8" else encoding
    while raw := stream.readline(LINE_LIMIT + 1):
        number += 1
        if number == 1 and encoding == "utf-8":
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            if not raw:
                return
        if len(raw) > LINE_LIMIT and not raw.endswith(b"\n"):
            while (rest := stream.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                pass
            yield Bad(number, f"the line is longer than {LINE_LIMIT:,} bytes")
            continue
        try:
            yield raw.decode(encoding)
        except UnicodeDecodeError as error:
            advice = hint(raw) if advice is None else advice
            where = f"byte 0x{raw[error.start]:02x} at position {error.start}"
            yield Bad(number, f"not {shown}: {where}{advice}")


# Letters that are frequent in text of an encoding, for a guess: of those beside ASCII letters, and of other scripts.
_LATIN = {
    "cp1252": "àáâãäåæçèéêëìíîïñòóôõöøùúûüÿßœÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜŒ‘’“”„–—…€£§°«»¿¡·•®©",
    "cp1250": "ąćčďęěłľňńőřśšťůűźżžáéíóúýöüäôçđßĄĆČĎĘĚŁĽŇŃŐŘŚŠŤŮŰŹŻŽÁÉÍÓÚÝÖÜÄÔ‘’“”„–—…€§°«»",
    "cp1254": "ğışçöüİŞĞÇÖÜâîû‘’“”–—…€",
    "cp850": "àâäåçéèêëïîìíñòóôöùúûüßæøÇÜÉÄÅÆÖÑ",
    "mac_roman": "àáâãäåæçèéêëìíîïñòóôöùúûüßøœ‘’“”–—…",
}

_OTHER_SCRIPTS = {
    "cp1251": "оеаинтсрвл",
    "koi8_r": "оеаинтсрвл",
    "cp1253": "αοιετσνηυρ",
    "cp1255": "יוהלאמרתבש",
    "cp1256": "اليمونرتبع",
    "shift_jis": "のにをはがとでたいしまーんス",
    "euc_jp": "のにをはがとでたいしまーんス",
    "gb18030": "的一是不了在人有我他这中大来上国和",
    "big5": "的一是不了在人有我他這中大來上國和",
    "euc_kr": "이다는을의에고가지하한기",
}


def likely_encoding(sample: bytes) -> str | None:
    """The encoding that bytes which are not UTF-8 are most probably in; None: no idea."""
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if sample.count(0) > len(sample) // 4:  # every other byte of ASCII in UTF-16
        return "utf-16-le" if sample[1::2].count(0) > sample[0::2].count(0) else "utf-16-be"
    high = [byte > 0x7F for byte in sample]
    together = sum(one and two for one, two in pairwise(high))
    letters = _OTHER_SCRIPTS if 2 * together > sum(high) else _LATIN  # accents stand alone among ASCII
    scores = {encoding: _familiarity(sample, encoding, common) for encoding, common in letters.items()}
    best = max(scores, key=lambda encoding: scores[encoding])
    return best if scores[best] >= (0.5 if letters is _LATIN else 0.1) else None


def _familiarity(sample: bytes, encoding: str, common: str) -> float:
    """The share of the characters beyond ASCII that are `common`; 0 if the sample cannot be decoded."""
    whole = sample[: sample.rfind(b"\n") + 1] or sample  # the sample may end inside of a character
    try:
        rare = [character for character in whole.decode(encoding) if character > "\x7f"]
    except UnicodeDecodeError:
        return 0.0
    return sum(character in common for character in rare) / max(len(rare), 1)


def _bare(line: str) -> str:
    """The line without its ending."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def _parse_json(line: str, number: int) -> object:
    """The value, or a `Bad` that says why there is none."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return Bad(number, f"not JSON: {error.msg} at position {error.pos}")
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        return Bad(number, f"not JSON that can be read: {error}")


def _tsv_fields(lines: Iterator[str | Bad]) -> Iterator[tuple[int, list[str] | Bad]]:
    """Line number and fields; quotes have no meaning."""
    return ((n, x if isinstance(x, Bad) else _bare(x).split("\t")) for n, x in enumerate(lines, 1))


def _csv_fields(lines: Iterator[str | Bad]) -> Iterator[tuple[int, list[str] | Bad]]:
    """Number of the first line and fields; a quoted field may contain newlines. Blank lines are not rows."""
    feed = _CsvFeed(lines)
    reader = csv.reader(feed, strict=True)
    while True:
        number = feed.number + 1
        feed.record_chars = 0
        before = csv.field_size_limit(LINE_LIMIT)  # global to the process: raised for this call only
        try:
            record = next(reader)
        except StopIteration:
            return
        except (csv.Error, _BadLineError) as error:
            yield number, Bad(number, f"not CSV: {error}" if isinstance(error, csv.Error) else str(error))
            continue
        finally:
            csv.field_size_limit(before)
        if record:
            yield number, record


class _BadLineError(Exception):
    """Carries the reason through csv.reader."""


class _CsvFeed(Iterator[str]):
    """Lines for csv.reader. A class, since a generator that raised could not continue after a bad line."""

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


def _pyarrow() -> Any:  # noqa: ANN401 - the module; it has no stubs
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("reading parquet", "pyarrow", "parquet") from error
    return pyarrow


def _open_parquet(path: Path) -> Any:  # noqa: ANN401 - a pyarrow file
    pa = _pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a parquet file that can be read ({error})") from error


def _batches(file: Any, path: Path, columns: list[str]) -> Iterator[Any]:  # noqa: ANN401 - of pyarrow
    """Only these columns, one batch at a time; the footer may be intact where a page is not."""
    try:
        yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (_pyarrow().ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the parquet file is damaged: a page cannot be read ({error})")


def _without_nanoseconds(column: Any) -> Any:  # noqa: ANN401 - a pyarrow array
    """A time as Python's datetime can represent it."""
    pa, kind = _pyarrow(), column.type
    if not pa.types.is_timestamp(kind) or kind.unit != "ns":
        return column
    return column.cast(pa.timestamp("us", kind.tz), safe=False)


def _python_type(kind: Any) -> Any:  # noqa: ANN401 - a pyarrow type
    """The type of the values in Python: texts, numbers, bools, times, or `list[...]` of these; `object` for others."""
    types = _pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return list[_python_type(kind.value_type)]  # type: ignore[misc]
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (
        (_is_string, str),
        (types.is_boolean, bool),
        (types.is_integer, int),
        (types.is_floating, float),
        (types.is_date, date),
        (types.is_timestamp, datetime),
    )
    return next((python for fits, python in tests if fits(kind)), object)


def _is_string(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow type
    types = _pyarrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

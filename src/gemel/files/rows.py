"""Rows in and out: texts with ids from any file that `RecordFile` reads, and rows with named fields to a file.

Reading chooses the column that has the texts, and skips or refuses bad rows. Writing is streamed and atomic: .tsv,
.csv, .jsonl (each also .gz) or .parquet.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias, get_args

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.atomic import atomic_file
from gemel.files.records import Bad, InputFormat, Record, RecordFile, kind_of, listed, no_rows
from gemel.terminal import counted, json_value

BAD_SHOWN = 5  # messages kept of the rows that `skip_bad` leaves out

ID_COLUMN = "id"
"""The column of the ids where the caller names none."""


class Row(NamedTuple):
    """A text and the name it keeps in every output."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that the caller named; None: our choice. `where` is the input, for messages."""

    text: str | None
    id: str | None
    where: str

    def choose_text(self, columns: Sequence[str], candidates: Sequence[str]) -> str:
        """The named column, else "text", else the only one of `candidates` (those that contain strings)."""
        if self.text is not None:
            return self.text
        if "text" in columns:
            return "text"
        rest = [name for name in candidates if name != self.id]
        if len(rest) == 1:
            return rest[0]
        raise InputError(
            f"{self.where}: which column holds the texts? Name it with text_column (--text-column). "
            f"Columns: {listed(list(columns))}",
            code="GEM-303",
        )

    def with_default_id(self, types: Mapping[str, str]) -> Columns:
        """With the column "id" as that of the ids, if none is named and there is one beside the texts.

        `types` says what each column contains; ids are strings or whole numbers.
        """
        usable = types.get(ID_COLUMN, "").startswith(("string", "number", "int", "uint"))
        if self.id is not None or not usable or self.text == ID_COLUMN or len(types) < 2:
            return self
        return replace(self, id=ID_COLUMN)

    def check(self, columns: Sequence[str]) -> None:
        """Refuse names that the input does not have."""
        for name in (self.text, self.id):
            if name is not None and name not in columns:
                raise InputError(f"{self.where}: no column {name!r}. Columns: {listed(list(columns))}")


class SkippedRows:
    """The bad rows of an input: counted if they may be left out, else the first is an error."""

    def __init__(self, allowed: bool) -> None:
        self.count = 0
        self.messages: list[str] = []
        """The first few of them, as `file:line: reason`."""
        self._allowed = allowed

    def add(self, message: str) -> None:
        """Leave out a row; an InputError unless that is allowed."""
        if not self._allowed:
            raise InputError(message)
        self.count += 1
        if len(self.messages) < BAD_SHOWN:
            self.messages.append(message)

    def summary(self) -> str:
        """How many rows were left out, and why the first was; empty if none was."""
        return (
            f"{counted(self.count, 'bad row')} skipped, the first: {self.messages[0]}" if self.count else ""
        )

    def nothing_left(self, where: str) -> InputError:
        """The error for an input without a row that can be used."""
        return InputError(f"{where}: no row can be used: {self.summary()}") if self.count else no_rows(where)


class TextRows(Iterator[Row]):
    """The rows of one input, in order, with the progress and the number of bad rows that were skipped."""

    def __init__(
        self,
        rows: Generator[Row | Bad],
        where: str,
        skip_bad: bool,
        fraction: Callable[[], float | None],
        names: Sequence[str] = (),
    ) -> None:
        """`names`: the column of the texts and that of the ids, once the first row is read."""
        self._rows = rows
        self._where = where
        self._skipped = SkippedRows(skip_bad)
        self._fraction = fraction
        self._names = names
        self._taken = 0
        self._ahead: list[Row] = []

    @property
    def skipped(self) -> int:
        """Bad rows left out so far; always 0 without `skip_bad`."""
        return self._skipped.count

    @property
    def bad(self) -> list[str]:
        """The first few of them, as `file:line: reason`."""
        return self._skipped.messages

    @property
    def with_ids(self) -> bool:
        """Whether the ids are those of a column, not row numbers; known once the first row is read."""
        return len(self._names) > 1

    @property
    def fraction(self) -> float | None:
        """The part of the input that was read, 0 to 1; None if unknown (standard input)."""
        return self._fraction()

    def started(self) -> TextRows:
        """These rows, after the first was read: an input without a row that can be used is an error here."""
        self._ahead = [next(self)]
        self._taken -= 1
        return self

    def __next__(self) -> Row:
        if self._ahead:
            item = self._ahead.pop()
        else:
            try:
                item = self._next_good()
            except StopIteration:
                if not self._taken:
                    raise self._skipped.nothing_left(self._where) from None
                raise
        self._taken += 1
        return item

    def skipped_summary(self) -> str:
        """How many bad rows were left out, and why the first was; empty if none was."""
        return self._skipped.summary()

    def _next_good(self) -> Row:
        while isinstance(item := next(self._rows), Bad):
            try:
                self._skipped.add(f"{self._where}:{item.line}: {item.reason}")
            except InputError:
                self._rows.close()  # the traceback of the error would keep the file open
                raise
        return item


def read_rows(
    path: Path | str,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    format: InputFormat | None = None,
    skip_bad: bool = False,
    encoding: str | None = None,
) -> TextRows:
    """The rows of a file, or of standard input if `path` is "-" (then `format` is "txt" unless given).

    Without `id_column` the ids are those of the column "id"; without that, the row numbers from 0; a bad row that is
    skipped keeps its number.
    Without `text_column` the column is "text", else the only other one that contains strings.
    An input without any row that can be used is an error. `encoding`: as of `RecordFile`.
    """
    if format is not None and format not in get_args(InputFormat):
        raise InputError(f"unknown input format {format!r}. Known: {', '.join(get_args(InputFormat))}")
    file = RecordFile(path, format, encoding)
    if file.kind == "txt" and (text_column is not None or id_column is not None):
        raise InputError(f"{file.name}: a .txt file has one text per line and no columns to name")
    return _text_rows(file, Columns(text_column, id_column, file.name), skip_bad, ids=True)


def read_texts(path: Path | str, *, text_column: str | None = None, skip_bad: bool = False) -> TextRows:
    """`read_rows` where only the texts are of interest: ids are row numbers, and bad ones do no harm."""
    file = RecordFile(path)
    return _text_rows(file, Columns(text_column, None, file.name), skip_bad, ids=False)


def _text_rows(file: RecordFile, columns: Columns, skip_bad: bool, *, ids: bool) -> TextRows:
    names: list[str] = []
    return TextRows(_rows(file, columns, names, ids), file.name, skip_bad, file.fraction, names)


def _rows(file: RecordFile, columns: Columns, names: list[str], ids: bool) -> Generator[Row | Bad]:
    def choose(types: Mapping[str, str]) -> list[str]:
        chosen = columns.with_default_id(types)
        names.extend(_choose(file, chosen, types)[: 2 if ids else 1])
        return names

    for number, record in enumerate(file.scan(choose)):
        yield record if isinstance(record, Bad) else row_of(record, names, number)


def _choose(file: RecordFile, columns: Columns, types: Mapping[str, str]) -> list[str]:
    """The column of the texts and that of the ids, if there is one."""
    if file.kind != "jsonl":  # each row of it has its own fields
        columns.check(list(types))
    text = columns.choose_text(list(types), [name for name, kind in types.items() if kind == "string"])
    if file.kind == "parquet" and types[text] != "string":
        raise InputError(f"{file.name}: column {text!r} holds {types[text]}, not strings")
    return [text] if columns.id is None else [text, columns.id]


def text_column_of(file: RecordFile, columns: Columns) -> str:
    """The column that `read_rows` would take the texts from; of .jsonl the first row decides."""
    names: list[str] = []

    def choose(types: Mapping[str, str]) -> list[str]:
        names.extend(_choose(file, columns, types))
        return names

    next(file.scan(choose), None)
    return names[0] if names else columns.choose_text([], [])


def row_of(record: Record, names: Sequence[str], number: int) -> Row | Bad:
    """A row from a record whose first value is the text and whose second, if `names` has two, the id."""
    text = record.values[0]
    if not isinstance(text, str):
        return Bad(record.line, f"{names[0]!r} must be a string, got {kind_of(text)}")
    if len(names) == 1:
        return Row(str(number), text)
    name = record.values[1]
    if isinstance(name, bool) or not isinstance(name, str | int):
        return Bad(record.line, f"{names[1]!r} must be a string or a whole number, got {kind_of(name)}")
    return Row(str(name), text)


Fields: TypeAlias = dict[str, Any]

_KINDS = (".tsv", ".csv", ".jsonl", ".parquet")

_GROUP = 8192  # rows of a parquet group

_GROUP_BYTES = 64 << 20  # of vectors in a group, from which on it ends earlier

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # what makes a spreadsheet compute or split a cell

_BREAKS = re.compile(r"[\t\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


def check_output(path: Path) -> str:
    """The format by the name of the file, or an error before any work is done."""
    bare = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = bare.suffix.lower()
    if kind not in _KINDS or (kind == ".parquet" and bare != path):
        raise InputError(
            f"cannot tell from its name what to write to {path}. Known endings: {', '.join(_KINDS)} "
            "(the first three also with .gz)"
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"{path} is a folder" if path.is_dir() else f"no folder {path.absolute().parent}")
    return kind


def write_rows(path: Path, rows: Iterable[Fields], *, escape_formulas: bool = False) -> int:
    """Write all rows, which must have the same fields, and return how many. A tab or line break is a space in .tsv.

    `escape_formulas` puts an apostrophe before every text of .csv and .tsv that a spreadsheet would take for a formula.
    """
    kind = check_output(path)
    if escape_formulas and kind in (".csv", ".tsv"):
        rows = ({_no_formula(name): _no_formula(value) for name, value in row.items()} for row in rows)
    try:
        with atomic_file(path) as working:
            if kind == ".parquet":
                return _write_parquet(working, rows)
            return _write_text(working, rows, path, kind)
    except OSError as error:
        raise WorkError(f"cannot write {path}: {error}") from error


def _no_formula(value: Any) -> Any:  # noqa: ANN401 - whatever a row holds
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _write_text(working: Path, rows: Iterable[Fields], path: Path, kind: str) -> int:
    count = 0
    with _open(working, packed=path.suffix.lower() == ".gz") as file:
        write = csv.writer(file, lineterminator="\n").writerow if kind == ".csv" else _tsv_writer(file)
        for row in rows:
            if kind == ".jsonl":
                file.write(as_json(row) + "\n")
            else:
                if count == 0:
                    write(list(row))
                write([_shown(value) for value in row.values()])
            count += 1
    return count


def _tsv_writer(file: TextIO) -> Callable[[list[str]], object]:
    return lambda cells: file.write("\t".join(_BREAKS.sub(" ", cell) for cell in cells) + "\n")


@contextmanager
def _open(path: Path, *, packed: bool) -> Iterator[TextIO]:
    with path.open("wb") as raw:
        # mtime 0: equal rows give equal bytes.
        binary = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") if packed else raw
        with io.TextIOWrapper(binary, encoding="utf-8", errors="replace", newline="") as text:
            yield text


def as_json(value: object) -> str:
    """On one line; dates and times as ISO 8601, arrays as lists."""
    return json.dumps(value, ensure_ascii=False, default=json_value)


def _shown(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    return "" if value is None else as_json(value) if isinstance(value, list) else str(value)


def _write_parquet(working: Path, rows: Iterable[Fields]) -> int:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra("writing parquet", "pyarrow", "parquet") from error
    count = 0
    with closing(_Groups(working)) as out:
        for group in _row_groups(rows):
            try:
                out.add(pyarrow.Table.from_pylist(group))
            except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
                raise WorkError(
                    f"cannot write row {count:,} and those after it to parquet, which needs one type per column: "
                    f"{error}. Write .jsonl instead"
                ) from error
            count += len(group)
    return count


def _row_groups(rows: Iterable[Fields]) -> Iterator[list[Fields]]:
    """The rows in groups that fit into memory with their vectors; one empty group if there are no rows."""
    group: list[Fields] = []
    size, yielded = 0, False
    for row in rows:
        group.append(row)
        size += sum(_array_bytes(value) for value in row.values() if isinstance(value, list))
        if len(group) >= _GROUP or size >= _GROUP_BYTES:
            yield group
            group, size, yielded = [], 0, True
    if group or not yielded:
        yield group


def _array_bytes(value: object) -> int:
    """Bytes of the arrays in a list, also in lists and dictionaries inside of it."""
    if isinstance(value, dict | list):
        return sum(map(_array_bytes, value.values() if isinstance(value, dict) else value))
    return int(getattr(value, "nbytes", 0))


class _Groups:
    """A parquet file that grows by groups of rows. If a group needs a wider type than those before it (a text after
    nulls, a fraction after whole numbers), these are written again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schema: Any = None  # pyarrow has no stubs
        self._writer: Any = None

    def add(self, table: Any) -> None:  # noqa: ANN401
        import pyarrow

        schemas = [table.schema] if self._schema is None else [self._schema, table.schema]
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
        if schema != self._schema:
            self._widen(schema)
        self._writer.write_table(table.select(schema.names).cast(schema))  # refuses what would be cut

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _widen(self, schema: Any) -> None:  # noqa: ANN401
        from pyarrow import parquet

        self.close()
        narrow = None if self._schema is None else self._path.rename(f"{self._path}.narrow")
        self._schema, self._writer = schema, parquet.ParquetWriter(self._path, schema)
        if narrow is None:
            return
        try:
            with parquet.ParquetFile(narrow) as groups:
                for number in range(groups.num_row_groups):
                    self._writer.write_table(groups.read_row_group(number).cast(schema))
        finally:
            narrow.unlink()

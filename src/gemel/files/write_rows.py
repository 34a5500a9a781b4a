"""Rows with named fields to a file, streamed and atomic: .tsv, .csv, .jsonl (each also .gz) or .parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import date
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.atomic import atomic_file
from gemel.terminal import iso_date

Fields: TypeAlias = dict[str, Any]

_KINDS = (".tsv", ".csv", ".jsonl", ".parquet")

_GROUP = 8192  # rows of a parquet group

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
    """On one line; dates and times as ISO 8601."""
    return json.dumps(value, ensure_ascii=False, default=iso_date)


def _shown(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    return "" if value is None else as_json(value) if isinstance(value, list) else str(value)


def _write_parquet(working: Path, rows: Iterable[Fields]) -> int:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra("writing parquet", "pyarrow", "parquet") from error
    source, count = iter(rows), 0
    first = list(islice(source, _GROUP))
    with closing(_Groups(working)) as out:
        for group in chain([first], iter(lambda: list(islice(source, _GROUP)), [])):
            try:
                out.add(pyarrow.Table.from_pylist(group))
            except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
                raise WorkError(
                    f"cannot write row {count:,} and those after it to parquet, which needs one type per column: "
                    f"{error}. Write .jsonl instead"
                ) from error
            count += len(group)
    return count


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

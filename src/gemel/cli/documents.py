"""What verbs read: texts with ids or row numbers, documents of an index with typed fields, and folders of files.

Columns of .csv and .tsv have no types; one that contains only whole numbers, numbers, dates or times is read as such.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_args

import click

from gemel.cli.output import echo
from gemel.errors import InputError, did_you_mean
from gemel.files.records import Bad, InputFormat, Record, RecordFile
from gemel.files.rows import (
    ID_COLUMN,
    Columns,
    Row,
    SkippedRows,
    as_json,
    read_rows,
    row_of,
    text_column_of,
)
from gemel.index.fields import TYPES, checked_time, plain_value, shortened
from gemel.index.port import LISTS, FieldType
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.index.index import Index

_VECTOR = "vector"  # the type of a column of vectors, which no field has

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


_KINDS: tuple[FieldType, ...] = (
    "int",
    "float",
    "date",
    "datetime",
)  # of columns of .csv and .tsv; the first fits best

# Leading zeros are part of a code, and more digits than a 64-bit number has are part of a name.
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")

_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?<=[0-9])[eE][+-]?[0-9]+)")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_TIME = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}.*")


@dataclass(frozen=True)
class InputRows:
    """The texts of a file with their ids."""

    rows: list[Row]
    with_ids: bool
    """Whether the ids are those of a column; else they are row numbers from 0."""

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.rows]


def read_input(
    path: str,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad: bool = False,
    input_format: InputFormat | None = None,
) -> InputRows:
    """All rows of a file; those that were skipped are reported on standard error."""
    rows = read_rows(
        path, text_column=text_column, id_column=id_column, skip_bad=skip_bad, format=input_format
    )
    result = InputRows(list(rows), rows.with_ids)
    if rows.skipped:
        echo(rows.skipped_summary(), err=True)
    return result


def warn_of_blank(ids: Sequence[str], texts: Sequence[str], with_ids: bool) -> None:
    """Say which texts have nothing to compare."""
    blank = [name for name, text in zip(ids, texts, strict=True) if not text.strip()]
    if blank:
        shown = ", ".join(blank[:5]) + (", ..." if len(blank) > 5 else "")
        verb, what = "is" if len(blank) == 1 else "are", "id" if with_ids else "row"
        echo(
            f"warning: {counted(len(blank), 'text')} {verb} blank ({what} {shown}). Blank texts are equal to each "
            "other, with a score of 1.0. Remove them, or choose another --text-column",
            err=True,
        )


def with_names(rows: Iterable[dict[str, Any]], with_ids: Mapping[str, bool]) -> Iterator[dict[str, Any]]:
    """Rows of results with left_id beside `left` if that is an id, or left_row, a number, if not; row beside `id`."""
    last = [*with_ids][-1]
    for row in rows:
        named: dict[str, Any] = {}
        for name, value in row.items():
            named[name] = value
            if name == last:
                for each, has_ids in with_ids.items():
                    label = f"{'' if each == 'id' else each + '_'}{'id' if has_ids else 'row'}"
                    named[label] = row[each] if has_ids else int(row[each])
        yield named


@dataclass(frozen=True)
class InputDocument:
    row: int
    """From 0."""
    text: str
    id: str | None
    fields: dict[str, Any]
    vector: Any = None
    """(dim,) of the file; None: it is to be encoded."""


@dataclass(frozen=True)
class Stream:
    documents: Iterator[InputDocument]
    fields: Mapping[str, Any]
    """Name to type, of the columns that are kept."""
    with_ids: bool
    skipped: SkippedRows
    recognized: Mapping[str, Any] = field(default_factory=dict)
    """Those of the fields whose type was taken from the values of a table."""


@dataclass(frozen=True, eq=False)
class GivenVectors:
    """The vectors of `--vector-column`: a column of the file, or an array with one row for each of its rows."""

    column: str | None
    array: Any = None

    @classmethod
    def named(cls, name: str, file: DocumentFile) -> GivenVectors:
        """`name`: a column, or a .npy file."""
        if not name.endswith(".npy"):
            check_columns(file, {name: None})
            if name in (file.text, file.id):
                raise InputError(
                    f"--vector-column {name} is the column of the {'texts' if name == file.text else 'ids'}"
                )
            return cls(name)
        import numpy as np

        try:
            array = np.load(name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"--vector-column {name} cannot be read: {error}") from error
        rows = sum(1 for _ in file.file.records([file.text]))
        if array.ndim != 2 or len(array) != rows:
            raise InputError(
                f"--vector-column {name} has the shape {array.shape}, but {file.file.name} has {counted(rows, 'row')}: "
                "one vector is needed for each"
            )
        return cls(None, array)

    def of(self, document: InputDocument) -> InputDocument:
        """The document with its vector."""
        if self.column is None:
            return replace(document, vector=self.array[document.row])
        fields = dict(document.fields)
        return replace(document, vector=fields.pop(self.column), fields=fields)


def _vector(value: object, where: str) -> Any:  # noqa: ANN401 - an array of numpy, which is loaded late
    import numpy as np

    listed = value
    if isinstance(listed, str):  # in .csv and .tsv
        try:
            listed = json.loads(listed)
        except ValueError:
            listed = None
    if (
        isinstance(listed, list) and listed and isinstance(listed[0], list)
    ):  # as `gemel index export` writes it
        if len(listed) > 1:
            raise InputError(
                f"{where} has {len(listed)} vectors, one per passage. Only documents of one passage can be added with "
                "their vector: add the file without --vector-column"
            )
        listed = listed[0]
    try:
        vector = np.asarray(listed, dtype=np.float32)
        if vector.ndim != 1 or not len(vector):
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(f"{where} is {repr(value)[:40]}, which is no vector: a list of numbers") from None
    return vector


@dataclass(frozen=True)
class DocumentFile:
    """A file with the role of each of its columns."""

    file: RecordFile
    text: str
    id: str | None
    id_type: FieldType
    fields: Mapping[str, Any]
    """Every other column, with its type."""

    def documents(
        self, fields: Mapping[str, Any], skipped: SkippedRows, vectors: GivenVectors | None = None
    ) -> Iterator[InputDocument]:
        """The rows, with these of the fields; one that a row of .jsonl lacks is null. No row at all is an error."""
        if vectors is not None and vectors.column is not None:
            fields = {**fields, vectors.column: _VECTOR}
        named = [self.text, *([self.id] if self.id else [])]
        records = self.file.records(
            [*named, *fields], optional=[name for name in fields if name not in named]
        )
        count = 0
        for number, record in enumerate(records):
            try:
                document = self._document(number, record, named, fields)
                document = document if vectors is None else vectors.of(document)
            except InputError as error:
                skipped.add(str(error))
                continue
            count += 1
            yield document
        if not count:
            raise skipped.nothing_left(self.file.name)

    def _document(
        self, number: int, record: Record | Bad, named: list[str], fields: Mapping[str, Any]
    ) -> InputDocument:
        row = record if isinstance(record, Bad) else row_of(record, named, number)
        if isinstance(record, Bad) or isinstance(row, Bad):
            raise self.file.error(row)  # type: ignore[arg-type]  # one of the two is
        values = zip(fields.items(), record.values[len(named) :], strict=True)
        where = f"{self.file.name}:{record.line}"
        typed = {
            name: _vector(value, f"{where}: {name}")
            if kind == _VECTOR
            else typed_cell(value, kind, f"{where}: {name}")
            for (name, kind), value in values
        }
        return InputDocument(number, row.text, row.id if self.id else None, typed)


def document_file(path: str, text_column: str | None, id_column: str | None) -> DocumentFile:
    """The roles of the columns of a file; the ids are those of the column "id", if none is named and this exists."""
    file = RecordFile(path)
    types = file.types()
    key = id_column
    if key is None and ID_COLUMN in types and text_column != ID_COLUMN and len(types) > 1:
        key = ID_COLUMN
    columns = Columns(text_column, key, path)
    columns.check(list(types))
    text = text_column_of(file, columns)
    others = {name: kinds for name, kinds in types.items() if name != text}
    if file.kind in ("jsonl", "parquet"):
        fields = {name: _field_type(kinds) for name, kinds in others.items()}
    else:
        fields = _recognized(file, list(others))
    return DocumentFile(file, text, key, fields.pop(key, "text") if key else "text", fields)


def _recognized(file: RecordFile, names: Sequence[str]) -> dict[str, FieldType]:
    """The type of each column of a table: that of all its values, or text. Reads on until every column is text."""
    possible = dict.fromkeys(names, frozenset(_KINDS))
    filled: set[str] = set()
    open_names = list(names)
    for record in file.records(names) if names else ():
        if isinstance(record, Bad):
            continue
        values = dict(zip(names, record.values, strict=True))
        for name in [name for name in open_names if values[name] != ""]:
            filled.add(name)
            possible[name] &= _kinds_of(values[name])
            if not possible[name]:
                open_names.remove(name)
        if not open_names:
            break
    return {
        name: next((kind for kind in _KINDS if kind in possible[name]), "text") if name in filled else "text"
        for name in names
    }


def _kinds_of(value: str) -> frozenset[FieldType]:
    """What a cell of a table may be besides a text."""
    if _INT.fullmatch(value):
        return frozenset({"int", "float"})
    if _FLOAT.fullmatch(value):
        return frozenset({"float"} if math.isfinite(float(value)) else ())
    kinds: frozenset[FieldType] = frozenset(
        {"date", "datetime"} if _DATE.fullmatch(value) else {"datetime"} if _TIME.fullmatch(value) else ()
    )
    try:
        for kind in kinds:
            checked_time("a cell", value, kind)
    except InputError:
        return frozenset()
    return kinds


def say_recognized(path: str, fields: Mapping[str, Any]) -> None:
    """Say once which columns of a table are read as numbers and times."""
    if fields:
        shown = ", ".join(f"{name} {kind}" for name, kind in fields.items())
        other = next(iter(fields))
        echo(
            f"{path}: by their values these columns are {shown} (for a text: --field {other}:text)", err=True
        )


def documents_of(
    path: str,
    text_column: str | None,
    id_column: str | None,
    wanted: Mapping[str, Any] | None,
    *,
    known: Mapping[str, Any],
    skip_bad: bool = False,
    vectors: str | None = None,
) -> Stream:
    """The file, streamed. `wanted` None: every other column is a field, typed as in the index, else as in the file.

    A wanted field without a type (None) has that of the index or of the file, too. `vectors`: see `GivenVectors`.
    """
    from gemel.index.documents import VECTOR_COLUMNS

    skipped = SkippedRows(skip_bad)
    if path == "-":
        if vectors is not None:
            raise InputError("--vector-column needs a file: standard input has only lines of text")
        return Stream(_typed_lines(skipped), {}, False, skipped)
    file = document_file(path, text_column, id_column)
    if wanted is not None:
        check_columns(file, wanted)
    given = None if vectors is None else GivenVectors.named(vectors, file)
    chosen = wanted
    if chosen is None:
        left_out = {vectors, *VECTOR_COLUMNS} - known.keys()  # of an export: no field can hold them
        chosen = dict.fromkeys(name for name in file.fields if name not in left_out)
    fields = {name: known.get(name) or kind or file.fields.get(name, "text") for name, kind in chosen.items()}
    guessed = {name: kind for name, kind in fields.items() if not known.get(name) and not chosen[name]}
    if file.file.kind not in ("csv", "tsv"):
        guessed = {}
    recognized = {name: kind for name, kind in guessed.items() if kind != "text"}
    return Stream(file.documents(fields, skipped, given), fields, file.id is not None, skipped, recognized)


def of_model(documents: Iterator[InputDocument], index: Index) -> Iterator[InputDocument]:
    """The documents, if the vector of the first is the one that the model of the index makes of its text."""
    for number, document in enumerate(documents):
        whole = len(document.vector) == index.dim and bool(
            document.vector.any()
        )  # else `add` says what is wrong
        if not number and whole and document.text and not index.made_by_model(document.text, document.vector):
            raise InputError(
                f"the vector of {shortened(repr(document.text))} in --vector-column is not the one that the model of "
                f"the index {index.location} makes of it. Give vectors of that model, or leave --vector-column out"
            )
        yield document


def _typed_lines(skipped: SkippedRows) -> Iterator[InputDocument]:
    """The lines of standard input that are not empty."""
    file = RecordFile("-")
    count = 0
    for number, record in enumerate(file.records(["text"])):
        if isinstance(record, Bad):
            skipped.add(str(file.error(record)))
        elif record.values[0]:
            count += 1
            yield InputDocument(number, record.values[0], None, {})
    if not count:
        raise skipped.nothing_left(file.name)


def check_columns(file: DocumentFile, names: Mapping[str, Any]) -> None:
    """Refuse fields that the file does not have."""
    columns = [file.text, *([file.id] if file.id else []), *file.fields]
    for name in names:
        Columns(name, None, file.file.name).check(columns)


def _field_type(kinds: set[Any]) -> FieldType:
    """The type of a column of JSON or parquet, whose values have these."""
    lists = {kind for kind in kinds if kind is list or isinstance(kind, GenericAlias)}
    if not lists:
        return _one_type(kinds) or "text"
    inside = {get_args(kind)[0] for kind in lists if kind is not list}
    element = _one_type(inside) if inside else "text"
    if lists != kinds or element is None:  # lists of lists, or lists and other values: as JSON
        return "text"
    return next(kind for kind, inner in LISTS.items() if inner == element)


def _one_type(kinds: set[Any]) -> FieldType | None:
    """None: no one type holds all of these."""
    names: dict[Any, FieldType] = {str: "text", bool: "bool", int: "int", float: "float", date: "date"}
    names[datetime] = "datetime"
    if kinds == {int, float}:
        return "float"
    return names.get(next(iter(kinds))) if len(kinds) == 1 else None


def typed_cell(value: object, kind: FieldType, where: str) -> object:
    """What a cell means in a column of this type; an empty cell of another type than text is null."""
    if value is None or (value == "" and kind != "text"):
        return None
    if kind in LISTS:
        return _list(value, kind, where)
    if not isinstance(value, str):
        return _as_text(value) if kind == "text" else _number(value, kind, where)
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[value.lower()]
    except (ValueError, KeyError):
        raise InputError(f"{where} is {value[:40]!r}, which is no {kind}") from None
    return checked_time(where, value, kind) if kind in ("date", "datetime") else value


def _as_text(value: object) -> str:
    """Lists and objects as the JSON they were."""
    return as_json(value) if isinstance(value, list | dict) else str(value)


def _list(value: object, kind: FieldType, where: str) -> list[object]:
    """A list from JSON or parquet; in .csv and .tsv it is written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = str(value)
    if not isinstance(value, list):
        raise InputError(
            f"{where} is {repr(value)[:40]}, which is no list. In a table write it as JSON: [...]"
        )
    return [typed_cell(each, LISTS[kind], where) for each in value]


def _number(value: object, kind: FieldType, where: str) -> object:
    """A number, bool or time from JSON or parquet; one that would lose something is refused."""
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)  # pandas keeps whole numbers as floats where some are missing
    if kind in ("date", "datetime"):
        return checked_time(where, plain_value(value), kind)
    fits = {"int": (int,), "float": (int, float), "bool": (bool,)}[kind]
    if type(value) not in fits:
        raise InputError(f"{where} is {repr(value)[:40]}, which is no {kind}")
    return value


@dataclass(frozen=True)
class FileChoice:
    """The flags for document files, as given; None: not given."""

    glob: str | None
    max_size: str | None
    sync: bool

    def settings(self) -> dict[str, Any]:
        """As arguments of `read_documents`, which knows the defaults."""
        given = {"glob": self.glob, "max_size": self.max_size}
        return {name: value for name, value in given.items() if value is not None}

    def refuse(self, source: str) -> None:
        """An error if one of them was given for rows of a table."""
        given = {"--glob": self.glob, "--max-size": self.max_size, "--sync": self.sync}
        for flag, value in given.items():
            if value and not Path(source).exists() and source != "-":
                raise InputError(f"no file or folder at {source}")
            if value:
                raise InputError(
                    f"{flag} is for a folder of document files, but {source} is one file with rows"
                )


def file_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--glob`, `--max-size` and `--sync`; the command gets them as one argument `choice`."""
    glob = click.option(
        "--glob",
        metavar="PATTERN",
        help="Which files of a folder, e.g. '**/*.{md,pdf}'. Default: all of md, html, txt, pdf and docx.",
    )
    size = click.option("--max-size", metavar="SIZE", help="Skip larger files of a folder. Default: 50MB.")
    sync = click.option(
        "--sync",
        is_flag=True,
        help="Delete the documents of files that are gone from the folder. `build` always does.",
    )

    @wraps(function)
    def call(*arguments: Any, glob: str | None, max_size: str | None, sync: bool, **values: Any) -> Any:  # noqa: ANN401
        return function(*arguments, choice=FileChoice(glob, max_size, sync), **values)

    return glob(size(sync(call)))


def has_document_files(source: str) -> bool:
    """A folder, or a file of a type that has no rows."""
    from gemel.files.document_formats import DOCUMENT_SUFFIXES

    path = Path(source)
    return source != "-" and (path.is_dir() or path.suffix.lower() in DOCUMENT_SUFFIXES)


def location_and_source(first: str, second: str | None) -> tuple[str, str]:
    """Where an index is built, and of what. One argument is the source; of two, the one that can be read."""
    if second is None:
        if not _is_source(first):
            raise InputError(
                f"there is no file or folder with files at {first}, so there is nothing to index"
            )
        path = Path(first) if Path(first).name not in ("", "..") else Path(first).resolve()
        return str(path.parent / f"{path.name if path.is_dir() else path.stem}.index"), first
    sources = [each for each in (first, second) if _is_source(each)]
    if len(sources) == 2:
        raise InputError(
            f"{first} and {second} can both be read. One must be the index: a new folder, or an index that exists"
        )
    if sources == [first]:
        return second, first
    return first, second  # the reader says what is wrong with a source that is none


def _is_source(given: str) -> bool:
    path = Path(given)
    if given == "-" or path.is_file():
        return True
    if not path.is_dir() or (path / "index.json").exists():
        return False
    # An index that was dropped leaves its lock.
    return any(each.name[0] != "." and each.name != "lock" for each in path.iterdir())


def field_types(typed: tuple[str, ...], default: FieldType | None = "text") -> dict[str, Any]:
    """`--field NAME[:TYPE]`, each name once; `default`: the type of a name alone."""
    found: dict[str, Any] = {}
    for each in typed:
        name, _, kind = each.partition(":")
        if not name or (kind or "text") not in TYPES or name in found:
            raise InputError(
                f"--field takes NAME or NAME:TYPE with a type of {', '.join(TYPES)}; got {each!r}"
            )
        found[name] = kind or default
    return found


def shown_fields(show: str | None, known: Mapping[str, Any]) -> list[str]:
    """The fields that `--show` names; all of them for "all", and without it all but the digests of files."""
    if show is None or show == "all":
        return [name for name in known if show == "all" or name != "file_digest"]
    names = [name.strip() for name in show.split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise InputError(f"--show: no field {name!r}.{hint} Known: {', '.join(known) or 'none'}; or all")
    return names

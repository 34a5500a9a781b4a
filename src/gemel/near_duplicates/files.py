"""A file of documents in, whole rows out: kept.* and removed.* have all columns of the input, in its format."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.near_duplicates.result import Deduped
from gemel.text.lines import LineFile, bare, parse_json
from gemel.text.records import Record, RecordFile
from gemel.text.rows import Bad, Columns, kind_of
from gemel.text.write_rows import write_rows

_WHY = ("duplicate_of", "reason", "score")


@dataclass(frozen=True)
class Documents:
    """The rows of a file."""

    source: Path
    rows: list[dict[str, Any]]
    """All columns."""
    texts: list[str]
    """The text columns of each row, joined by a line break."""
    ids: list[str]
    columns: list[str]
    """Of a table; of .jsonl those of the first rows."""
    ending: str
    """Of the files that are written: that of the input, but for packed ones."""


def read_documents(
    path: str | Path, *, text_columns: Sequence[str] = (), id_column: str | None = None
) -> Documents:
    """Without `text_columns` the text is the column "text", else the only one. Ids default to numbers from 0."""
    file = RecordFile(path)
    if file.kind == "txt" and (text_columns or id_column):
        raise InputError(f"{path}: a .txt file is a text a line and has no columns to name")
    names = file.columns()
    columns = [*text_columns] or [_only_text(file, names, id_column)]
    for name in (*columns, *([id_column] if id_column else [])):
        Columns(name, None, str(path)).check(names)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    ids: list[str] = []
    for place, row in _rows(file, names):
        parts = [row.get(name) for name in columns]
        wrong = next((at for at, part in enumerate(parts) if not isinstance(part, str)), None)
        if wrong is not None:
            raise InputError(
                f"{path}:{place}: {columns[wrong]!r} must be a string, got {kind_of(parts[wrong])}"
            )
        if id_column is not None and id_column not in row:
            raise InputError(f"{path}:{place}: no field {id_column!r} for the id")
        texts.append("\n".join(str(part) for part in parts))
        ids.append(str(len(rows) if id_column is None else row[id_column]))
        rows.append(row)
    return Documents(file.path, rows, texts, ids, names, f".{file.kind}")


def write_documents(folder: Path, documents: Documents, found: Deduped) -> list[Path]:
    """kept.* and removed.*; the latter with three more columns: of which id, exact or near, and the score."""
    kept = [documents.rows[at] for at in found.kept.tolist()]
    columns = zip(found.removed, found.duplicate_of, found.exact, found.score, strict=True)
    removed = []
    for at, other, same, score in columns:
        why = (documents.ids[other], "exact" if same else "near", round(float(score), 4))
        removed.append({**documents.rows[at], **dict(zip(_why_names(documents), why, strict=True))})
    paths = [folder / f"{name}{documents.ending}" for name in ("kept", "removed")]
    if documents.ending == ".txt":
        paths[1] = folder / "removed.tsv"
        _write(paths[0], "".join(f"{row['text']}\n" for row in kept))
    else:
        _write_table(paths[0], kept, documents.columns)
    _write_table(paths[1], removed, [*documents.columns, *_why_names(documents)])
    return paths


def _only_text(file: RecordFile, names: list[str], id_column: str | None) -> str:
    return Columns(None, id_column, str(file.path)).choose_text(names, names)


def _rows(file: RecordFile, names: list[str]) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Every column of every row; rows of .jsonl may have different ones."""
    found = _json_rows(file) if file.kind == "jsonl" else file.records(names)
    for record in found:
        if isinstance(record, Bad):
            raise InputError(f"{file.path}:{record.place}: {record.reason}")
        place, values = record
        yield place, values if isinstance(values, dict) else dict(zip(names, values, strict=True))


def _json_rows(file: RecordFile) -> Iterator[Bad | Record | tuple[int, dict[str, Any]]]:
    try:
        for number, line in enumerate(LineFile(file.path).lines(), 1):
            if isinstance(line, Bad):
                yield line
                continue
            if not line.strip(" \t\r\n"):
                continue
            value = parse_json(bare(line), number)
            if isinstance(value, Bad):
                yield value
            elif isinstance(value, dict | str):
                yield number, {"text": value} if isinstance(value, str) else value
            else:
                yield Bad(number, f"expected an object or a string, got {kind_of(value)}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file.path}: the gzip data is damaged or cut off ({error})") from error


def _why_names(documents: Documents) -> list[str]:
    """Names for the three columns that the input does not have."""
    return [f"dedupe_{name}" if name in documents.columns else name for name in _WHY]


def _write_table(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    if rows or path.suffix in (".jsonl", ".parquet"):
        write_rows(path, rows)
    else:  # no rows, but still a table
        _write(path, (",", "\t")[path.suffix == ".tsv"].join(columns) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise WorkError(f"cannot write {path}: {error}") from error


def write_json(path: Path, documents: Documents, found: Deduped, model: str | None) -> None:
    """The report for programs: positions and ids."""
    content = found.to_json()
    for duplicate in content["duplicates"]:
        duplicate["id"] = documents.ids[duplicate["position"]]
        duplicate["duplicate_of_id"] = documents.ids[duplicate["duplicate_of"]]
    for pair in content["spared"]:
        pair["left_id"], pair["right_id"] = documents.ids[pair["left"]], documents.ids[pair["right"]]
    whole = {"source": documents.source.name, "model": model, **content}
    _write(path, json.dumps(whole, ensure_ascii=False, indent=2) + "\n")

"""Files that a plan derives from the data: samples of rows, folds, other columns. Made once, reproducible by seed."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemel.errors import InputError
from gemel.files.atomic import atomic_file
from reproduction.parts import Folders, Rows

GRADES = {"DTORCD": "0", "NS": "0", "SS": "1", "HS": "2"}
SCORES = {"entailment": "1", "neutral": "0.5", "contradiction": "0"}

Table = list[dict[str, str]]


def files_of(rows: Rows, folders: Folders) -> list[Path]:
    """Paths to give to gemel; a file that is to be made is made now."""
    sources = [Path(folders.data) / f"{name}.tsv.gz" for name in rows.files]
    for source in sources:
        if not source.exists():
            raise InputError(
                f"{source} is not there. --data takes the folder with nli/, sts/, senteval/, ..."
            )
    if not rows.made:
        return sources
    target = Path(folders.work) / "data" / f"{rows.name}.tsv"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        table = _table(rows, sources)
        table = _unseen(table, files_of(rows.without, folders)[0]) if rows.without else table
        with atomic_file(target) as part:  # two threads may make the same one
            _write(part, table)
    return [target]


def _table(rows: Rows, sources: Sequence[Path]) -> Table:
    tables = [_read(source) for source in sources]
    if rows.shape == "texts":
        result = [{"text": text} for text in _distinct_texts(tables, rows)]
    else:
        shared = [name for name in tables[0][0] if all(name in table[0] for table in tables)]
        result = [{name: row[name] for name in shared} for table in tables for row in table]
    if rows.shape in SHAPES:
        result = [SHAPES[rows.shape](row) for row in result]
    if rows.fold:
        result = _fold(result, *rows.fold, held_out=rows.held_out)
    if rows.count:
        random.Random(rows.seed).shuffle(result)
        result = result[: rows.count]
    return result


def _graded(row: dict[str, str]) -> dict[str, str]:
    return {"left": row["premise"], "right": row["hypothesis"], "score": SCORES[row["label"]]}


def _argument(row: dict[str, str]) -> dict[str, str]:
    return {**row, "score": GRADES[row["label"]]}


SHAPES = {"graded": _graded, "arguments": _argument}
NOT_TEXTS = {
    *(
        "label",
        "fine_label",
        "score",
        "image",
        "protocol",
        "round",
        "topic",
        "entailment",
        "genre",
        "file",
        "year",
    ),
    *("id", "doc_id", "query_id", "question_id", "original_num", "bug_id", "dup_of_id"),
}


def _texts(table: Table) -> Iterator[str]:
    for row in table:
        yield from (value for name, value in row.items() if name not in NOT_TEXTS and value.strip())


def _distinct_texts(tables: Sequence[Table], rows: Rows) -> list[str]:
    """The texts of all files, each once; of a file at most `rows.each` that no earlier one has."""
    texts: dict[str, None] = {}
    for table in tables:
        own = [text for text in dict.fromkeys(_texts(table)) if text not in texts]
        if rows.each:
            random.Random(rows.seed).shuffle(own)
        texts |= dict.fromkeys(own[: rows.each])
    return list(texts)


def _unseen(table: Table, seen: Path) -> Table:
    """The rows of which no text is in the file of texts `seen`."""
    known = {_letters(line) for line in seen.read_text(encoding="utf-8").splitlines()[1:]}
    return [row for row in table if known.isdisjoint(map(_letters, _texts([row])))]


def _letters(text: str) -> str:
    """Without case, punctuation and spacing: data sets differ in these."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def _fold(table: Table, by: str, number: int, of: int, *, held_out: bool) -> Table:
    """Folds of pairs are assigned at random; folds of topics keep a topic together."""
    if by == "topics":
        topics = sorted({row["topic"] for row in table})
        random.Random(0).shuffle(topics)
        fold_of = {topic: index % of for index, topic in enumerate(topics)}
        owners = [fold_of[row["topic"]] for row in table]
    else:
        owners = [index % of for index in range(len(table))]
        random.Random(0).shuffle(owners)
    return [row for row, owner in zip(table, owners, strict=True) if (owner == number) == held_out]


def _read(path: Path) -> Table:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def _write(path: Path, table: Table) -> None:
    lines = ["\t".join(table[0]), *("\t".join(row.values()) for row in table)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

"""Search collections (queries, documents, relevance) and labeled pairs of texts, read from files.

A collection is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv) or three tables NAME-corpus, NAME-queries,
NAME-qrels. Judgements of unknown ids raise an InputError, or are counted with `strict=False`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import ENDINGS, DataTable, is_table, read_table, with_columns
from gemel.evaluation.task import LEFT, RIGHT

_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Collection:
    """Queries that have a relevant document, and the documents to search."""

    name: str
    layout: str
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    doc_ids: tuple[str, ...]
    corpus: tuple[str, ...]
    gains: tuple[dict[int, float], ...]
    """For each query: the position of each judged document and its relevance as published."""
    left_out: int = 0
    """Queries without a relevant document."""
    unknown_ids: int = 0
    """Judgements of a query or document that does not exist, which were not used."""

    def own_documents(self) -> NDArray[np.int64]:
        """(q,) the position of the document with the query's own id, -1 where there is none."""
        position = {name: i for i, name in enumerate(self.doc_ids)}
        return np.array([position.get(name, -1) for name in self.query_ids], dtype=np.int64)


@dataclass(frozen=True)
class _Files:
    name: str
    layout: str
    corpus: Path
    queries: Path
    qrels: Path


def read_collections(path: Path, *, split: str, strict: bool) -> list[Collection]:
    """Every collection at `path`: a folder, a folder of folders, or the start of three names (`data/cranfield`)."""
    collections = _find(path, split)
    if not collections:
        raise InputError(
            f"no search collection at {path}: expected corpus.jsonl, queries.jsonl and qrels/{split}.tsv, "
            "or tables NAME-corpus, NAME-queries and NAME-qrels (.tsv, .csv, .jsonl, each also .gz)"
        )
    return [_read(files, strict) for files in collections]


def _find(path: Path, split: str) -> list[_Files]:
    if path.is_dir():
        if beir := _beir(path, split):
            return [beir]
        trios = [_trio(file) for file in sorted(path.iterdir()) if _role(file) == "corpus"]
        folders = [_beir(folder, split) for folder in sorted(path.iterdir()) if folder.is_dir()]
        return [files for files in [*trios, *folders] if files]
    if path.is_file() and _role(path) == "corpus":
        return [_trio(path)]
    starts = sorted(path.parent.glob(f"{path.name}-corpus.*")) if path.parent.is_dir() else []
    return [_trio(starts[0])] if starts else []


def _beir(folder: Path, split: str) -> _Files | None:
    corpus = _table(folder, "corpus")
    if corpus is None or ".jsonl" not in corpus.name:
        return None
    queries, qrels = _table(folder, "queries"), _table(folder / "qrels", split)
    if queries is None:
        raise InputError(f"{folder} has corpus.jsonl but no queries.jsonl next to it")
    if qrels is None:
        names = ", ".join(sorted(file.name for file in folder.glob("qrels/*"))) or "nothing"
        raise InputError(
            f"{folder} has no qrels/{split}.tsv; in qrels there is {names}. Name one of them as split"
        )
    return _Files(folder.resolve().name, "beir", corpus, queries, qrels)


def _trio(corpus: Path) -> _Files:
    name = corpus.name.partition("-corpus.")[0]
    files = {role: _table(corpus.parent, f"{name}-{role}") for role in ("queries", "qrels")}
    for role, file in files.items():
        if file is None:
            raise InputError(f"{corpus} has no {name}-{role} table next to it")
    queries, qrels = files["queries"], files["qrels"]
    assert queries and qrels
    return _Files(name, "tables", corpus, queries, qrels)


def _role(file: Path) -> str:
    stem = file.name.partition(".")[0]
    return stem.rpartition("-")[2] if file.is_file() and is_table(file) and "-" in stem else ""


def _table(folder: Path, stem: str) -> Path | None:
    names = [stem + ending + packed for ending in ENDINGS for packed in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(files: _Files, strict: bool) -> Collection:
    corpus, queries = read_table(files.corpus), read_table(files.queries)
    doc_ids, query_ids = _ids(corpus, "_id", "doc_id"), _ids(queries, "_id", "query_id")
    gains, unknown = _judgements(read_table(files.qrels), query_ids, doc_ids, strict)
    texts = queries.texts("text")
    kept = [row for row, of_query in enumerate(gains) if any(gain > 0 for gain in of_query.values())]
    if not kept:
        raise InputError(f"{files.qrels} names no relevant document of any query in {files.queries}")
    return Collection(
        name=files.name,
        layout=files.layout,
        query_ids=tuple(query_ids[row] for row in kept),
        queries=tuple(texts[row] for row in kept),
        doc_ids=tuple(doc_ids),
        corpus=tuple(_document_texts(corpus, files.layout)),
        gains=tuple(gains[row] for row in kept),
        left_out=len(texts) - len(kept),
        unknown_ids=unknown,
    )


def _ids(table: DataTable, *names: str) -> list[str]:
    ids = table.texts(*names)
    seen: dict[str, int] = {}
    for row, name in enumerate(ids):
        if name in seen:
            raise InputError(
                f"{table.location(row)}: the id {name!r} is already at {table.location(seen[name])}"
            )
        seen[name] = row
    return ids


def _document_texts(table: DataTable, layout: str) -> list[str]:
    """Title and text. BEIR always joins them; in tables a text that begins with its title is left as it is."""
    texts = table.texts("text")
    if not table.has("title"):
        return texts
    return [
        text if layout == "tables" and text.startswith(title) else f"{title} {text}".strip()
        for title, text in zip(table.texts("title"), texts, strict=True)
    ]


def _judgements(
    table: DataTable, query_ids: Sequence[str], doc_ids: Sequence[str], strict: bool
) -> tuple[list[dict[int, float]], int]:
    """The judged documents of each query by position, and the number of judgements of unknown ids."""
    rows = {name: row for row, name in enumerate(query_ids)}
    positions = {name: i for i, name in enumerate(doc_ids)}
    gains: list[dict[int, float]] = [{} for _ in query_ids]
    unknown: list[str] = []
    queries, docs = table.texts("query-id", "query_id"), table.texts("corpus-id", "doc_id")
    for row, (query, doc, gain) in enumerate(
        zip(queries, docs, table.numbers("score", "relevance"), strict=True)
    ):
        if query not in rows or doc not in positions:
            kind, name = ("query", query) if query not in rows else ("document", doc)
            unknown.append(f"{kind} {name!r} at {table.location(row)}")
            continue
        before = gains[rows[query]].setdefault(positions[doc], float(gain))
        if before != gain:
            raise InputError(
                f"{table.location(row)}: query {query!r} and document {doc!r} are judged twice, "
                f"as {before:g} and {gain:g}"
            )
    if unknown and strict:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise InputError(
            f"{table.path} names ids that are not in the collection: {'; '.join(unknown[:_SHOWN])}{more}. "
            "Check that the files belong together, or leave them out with strict=False (--set strict=false)"
        )
    return gains, len(unknown)


def connected(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The connected components of positions 0 .. size - 1; a position without a pair is a component of its own."""
    parent = list(range(size))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]  # path halving
            i = parent[i]
        return i

    for left, right in pairs:
        one, other = sorted((root(left), root(right)))
        parent[other] = one
    groups: dict[int, list[int]] = {}
    for i in range(size):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


@dataclass(frozen=True)
class LabeledPairs:
    """Distinct texts, and the distinct pairs of their positions (lower first) with label 1."""

    texts: tuple[str, ...]
    same: tuple[tuple[int, int], ...]
    rows: int
    """Rows of the file, including those with label 0, whose texts are included too."""


PAIRS = with_columns(LEFT, RIGHT, ("label",))
"""The columns of a pair file."""


def read_pairs(table: DataTable) -> LabeledPairs:
    """The pairs of a table. Equal texts are one text; pairs of a text with itself are left out."""
    labels = table.numbers("label")
    index: dict[str, int] = {}
    same: dict[tuple[int, int], None] = {}
    for row, (left, right) in enumerate(zip(table.texts(*LEFT), table.texts(*RIGHT), strict=True)):
        if labels[row] not in (0, 1):
            raise InputError(f"{table.location(row)}: label must be 0 or 1, got {labels[row]:g}")
        one, other = sorted((index.setdefault(left, len(index)), index.setdefault(right, len(index))))
        if labels[row] == 1 and one != other:
            same[one, other] = None
    if not same:
        raise InputError(f"{table.path} has no pair of two texts with label 1, so there is nothing to find")
    return LabeledPairs(tuple(index), tuple(same), len(table))

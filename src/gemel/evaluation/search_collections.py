"""Search collections from files: queries, the documents to search, and which of them are relevant.

Three layouts are read: BEIR (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), that of the Hugging Face Hub, as NanoBEIR
is published (folders corpus, queries and qrels of Parquet files), and three tables NAME-corpus, NAME-queries,
NAME-qrels. Several collections may be below one folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import ENDINGS, DataTable, is_table, read_parquet, read_table

Layout = Literal["beir", "hub", "tables"]

_SHOWN = 3  # unknown ids in an error

_SHARD = re.compile(r"-\d+-of-\d+$")  # train-00000-of-00002.parquet

_HUB_PARTS = ("corpus", "queries", "qrels")


@dataclass(frozen=True, eq=False)
class Collection:
    """Queries that have a relevant document, and the documents to search."""

    name: str
    layout: Layout
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
    """The files of one collection; a table of the Hub may consist of several."""

    name: str
    layout: Layout
    corpus: tuple[Path, ...]
    queries: tuple[Path, ...]
    qrels: tuple[Path, ...]


def read_collections(path: Path, *, split: str, strict: bool) -> list[Collection]:
    """Every collection at `path`: a folder, a folder of folders, or the start of three names (`data/cranfield`)."""
    collections = _find(path, split)
    if not collections:
        raise InputError(
            f"no search collection at {path}: expected corpus.jsonl, queries.jsonl and qrels/{split}.tsv (BEIR), "
            "folders corpus, queries and qrels of .parquet files (NanoBEIR), "
            "or tables NAME-corpus, NAME-queries and NAME-qrels (.tsv, .csv, .jsonl, each also .gz)"
        )
    return [_read(files, strict) for files in collections]


def _find(path: Path, split: str) -> list[_Files]:
    if path.is_dir():
        if found := _in_folder(path, split):
            return found
        trios = [_trio(file) for file in sorted(path.iterdir()) if _role(file) == "corpus"]
        folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir()]
        return [*trios, *(files for folder in folders for files in _in_folder(folder, split))]
    if path.is_file() and _role(path) == "corpus":
        return [_trio(path)]
    starts = sorted(path.parent.glob(f"{path.name}-corpus.*")) if path.parent.is_dir() else []
    return [_trio(starts[0])] if starts else []


def _in_folder(folder: Path, split: str) -> list[_Files]:
    """The collections whose files are in this folder; none if it has none of their parts."""
    beir = _beir(folder, split)
    return [beir] if beir else _hub(folder, split)


def _beir(folder: Path, split: str) -> _Files | None:
    corpus, queries = _table(folder, "corpus"), _table(folder, "queries")
    if corpus is None or ".jsonl" not in corpus.name:
        if queries is not None and ".jsonl" in queries.name and (folder / "qrels").is_dir():
            raise InputError(f"{folder} has {queries.name} and qrels but no corpus.jsonl next to them")
        return None
    qrels = _table(folder / "qrels", split)
    if queries is None:
        raise InputError(f"{folder} has corpus.jsonl but no queries.jsonl next to it")
    if qrels is None:
        names = ", ".join(sorted(file.name for file in folder.glob("qrels/*"))) or "nothing"
        raise InputError(
            f"{folder} has no qrels/{split}.tsv; in qrels there is {names}. Name one of them as split"
        )
    return _Files(folder.resolve().name, "beir", (corpus,), (queries,), (qrels,))


def _hub(folder: Path, split: str) -> list[_Files]:
    """One collection, whatever its files are called; or several, whose files have the names of the collections."""
    parts = {part: _parquet_sets(folder / part) for part in _HUB_PARTS}
    if not any(parts.values()):
        return []
    missing = [part for part, sets in parts.items() if not sets]
    if missing:
        raise InputError(
            f"{folder} has {' and '.join(part for part in parts if part not in missing)} as Parquet, but no .parquet "
            f"file in {' and '.join(f'{part}/' for part in missing)}"
        )
    corpora = parts["corpus"]
    if len(corpora) == 1:
        (only,) = corpora
        queries = _chosen(folder / "queries", parts["queries"], only)
        qrels = _chosen(folder / "qrels", parts["qrels"], split, only)
        return [_Files(folder.resolve().name, "hub", corpora[only], queries, qrels)]
    return [
        _Files(
            name,
            "hub",
            files,
            *(_chosen(folder / part, parts[part], name, alone=False) for part in _HUB_PARTS[1:]),
        )
        for name, files in corpora.items()
    ]


def _parquet_sets(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The Parquet files of a folder by their names without the number of the shard."""
    sets: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
        sets.setdefault(_SHARD.sub("", file.stem), []).append(file)
    return {name: tuple(files) for name, files in sets.items()}


def _chosen(
    folder: Path, sets: Mapping[str, tuple[Path, ...]], *names: str, alone: bool = True
) -> tuple[Path, ...]:
    """The files of the first of these names; `alone`: or the only ones there are."""
    for name in names:
        if name in sets:
            return sets[name]
    if len(sets) == 1 and alone:
        return next(iter(sets.values()))
    raise InputError(
        f"{folder} has no {' or '.join(f'{name}.parquet' for name in names)}; there is {', '.join(sets)}"
        f"{'. Name one of them as split' if alone and folder.name == 'qrels' else ''}"
    )


def _trio(corpus: Path) -> _Files:
    name = corpus.name.partition("-corpus.")[0]
    files = []
    for role in ("queries", "qrels"):
        file = _table(corpus.parent, f"{name}-{role}")
        if file is None:
            raise InputError(f"{corpus} has no {name}-{role} table next to it")
        files.append((file,))
    return _Files(name, "tables", (corpus,), *files)


def _role(file: Path) -> str:
    stem = file.name.partition(".")[0]
    return stem.rpartition("-")[2] if file.is_file() and is_table(file) and "-" in stem else ""


def _table(folder: Path, stem: str) -> Path | None:
    names = [stem + ending + packed for ending in ENDINGS for packed in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(files: _Files, strict: bool) -> Collection:
    corpus, queries, qrels = (
        read_parquet(part) if files.layout == "hub" else read_table(part[0])
        for part in (files.corpus, files.queries, files.qrels)
    )
    doc_ids, query_ids = _ids(corpus, "_id", "doc_id"), _ids(queries, "_id", "query_id")
    gains, unknown = _judgements(qrels, query_ids, doc_ids, files.layout, strict)
    texts = queries.texts("text")
    kept = [row for row, of_query in enumerate(gains) if any(gain > 0 for gain in of_query.values())]
    if not kept:
        raise InputError(f"{qrels.path} names no relevant document of any query in {queries.path}")
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


def _document_texts(table: DataTable, layout: Layout) -> list[str]:
    """Title and text. BEIR always joins them; in tables a text that begins with its title is left as it is."""
    texts = table.texts("text")
    if not table.has("title"):
        return texts
    return [
        text if layout == "tables" and text.startswith(title) else f"{title} {text}".strip()
        for title, text in zip(table.texts("title"), texts, strict=True)
    ]


def _judgements(
    table: DataTable, query_ids: Sequence[str], doc_ids: Sequence[str], layout: Layout, strict: bool
) -> tuple[list[dict[int, float]], int]:
    """The judged documents of each query by position, and the number of judgements of unknown ids."""
    rows = {name: row for row, name in enumerate(query_ids)}
    positions = {name: i for i, name in enumerate(doc_ids)}
    gains: list[dict[int, float]] = [{} for _ in query_ids]
    unknown: list[str] = []
    queries, docs = table.texts("query-id", "query_id"), table.texts("corpus-id", "doc_id")
    listed = layout == "hub" and not table.has("score") and not table.has("relevance")
    # NanoBEIR lists the relevant documents, without a number.
    numbers = np.ones(len(table)) if listed else table.numbers("score", "relevance")
    for row, (query, doc, gain) in enumerate(zip(queries, docs, numbers, strict=True)):
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

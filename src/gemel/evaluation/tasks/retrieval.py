"""Task "retrieval": find the documents of a corpus that answer a query, by exact search.

A collection is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv) or three tables NAME-corpus, NAME-queries,
NAME-qrels. Judgements of unknown ids raise an InputError, or are counted with `strict=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import ENDINGS, DataTable, is_table, read_table
from gemel.evaluation.metrics import (
    Ranked,
    average_precision,
    ndcg,
    precision,
    ranked,
    recall,
    reciprocal_rank,
)
from gemel.evaluation.task import TASKS, Bootstrap, Scores, System, Task, mean_scores, rank, search_protocol
from gemel.vectors.similarity import METRICS

Gain = Literal["graded", "binary"]

DEPTH = 100  # ranks that MAP and the deep recall use, as in BEIR

_SHOWN = 3  # unknown ids in an error


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
class RetrievalTask:
    """One collection, ready for any encoder or retriever."""

    collection: Collection
    metric: str
    k: int
    gain: Gain
    skip_same_id: bool
    bootstrap: Bootstrap

    def score(self, encoder: System) -> Scores:
        """nDCG@k, MAP@100, MRR@k, recall and precision, each a mean over queries."""
        data, k = self.collection, self.k
        lists = self._ranked(encoder)
        values = {
            f"ndcg@{k}": ndcg(lists, k),
            f"map@{DEPTH}": average_precision(lists, DEPTH),
            f"mrr@{k}": reciprocal_rank(lists, k),
            f"recall@{k}": recall(lists, k),
            f"recall@{DEPTH}": recall(lists, DEPTH),
            f"precision@{k}": precision(lists, k),
        }
        return mean_scores(
            "retrieval", data.name, values, self._protocol(encoder), self.bootstrap, unit="queries"
        )

    def _ranked(self, encoder: System) -> Ranked:
        data, depth = self.collection, max(self.k, DEPTH)
        hits = rank(encoder, data.queries, data.corpus, depth + self.skip_same_id, self.metric)
        index = without(hits.index, data.own_documents())[:, :depth] if self.skip_same_id else hits.index
        binary = self.gain == "binary"
        return ranked(
            index, [{p: float(g > 0) if binary else g for p, g in known.items()} for known in data.gains]
        )

    def _protocol(self, encoder: System) -> dict[str, Any]:
        data = self.collection
        graded = "relevance as published" if self.gain == "graded" else "1 for any relevance above 0"
        return {
            **search_protocol(encoder, self.metric),
            "search": "all documents; ties to the earlier document",
            "layout": data.layout,
            "documents": len(data.corpus),
            "relevant": "relevance above 0; 0 and below are not relevant",
            "gain": f"{self.gain}: {graded}",
            "skip_same_id": self.skip_same_id,
            "queries_without_relevant_left_out": data.left_out,
            "judgements_of_unknown_ids_left_out": data.unknown_ids,
            **self.bootstrap.protocol("queries", data.query_ids, data.queries, data.corpus, data.gains),
        }


@TASKS.add("retrieval")
def load(
    path: Path,
    *,
    metric: str = "cosine",
    k: int = 10,
    split: str = "test",
    gain: Gain | None = None,
    skip_same_id: bool | None = None,
    strict: bool = True,
    rounds: int = 1000,
    seed: int = 0,
) -> list[Task]:
    """Each collection at `path`, in the BEIR layout or as three tables.

    `gain`: "graded" takes the relevance as the gain of nDCG, "binary" takes 1 for all relevant documents. By default a
    BEIR folder is graded, and tables are binary, since published codes may run the other way (in Cranfield 1 is the
    best of 1 to 4). `skip_same_id` leaves out the document with the query's own id; by default in BEIR folders only, as
    BEIR does. `strict=False` leaves out judgements of unknown ids and counts them.
    """
    METRICS[metric]
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    if gain is not None and gain not in get_args(Gain):
        raise InputError(f"gain must be one of {', '.join(get_args(Gain))}, got {gain!r}")
    return [
        RetrievalTask(
            collection=collection,
            metric=metric,
            k=k,
            gain=gain or ("graded" if collection.layout == "beir" else "binary"),
            skip_same_id=collection.layout == "beir" if skip_same_id is None else skip_same_id,
            bootstrap=Bootstrap(rounds, seed),
        )
        for collection in read_collections(Path(path), split=split, strict=strict)
    ]


def without(index: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranked positions (q, depth) without the document of each query itself; the others move up."""
    same = (index == own[:, None]) & (index >= 0)
    order = np.argsort(same, axis=1, kind="stable")
    return np.where(np.take_along_axis(same, order, axis=1), -1, np.take_along_axis(index, order, axis=1))


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
    files = []
    for role in ("queries", "qrels"):
        file = _table(corpus.parent, f"{name}-{role}")
        if file is None:
            raise InputError(f"{corpus} has no {name}-{role} table next to it")
        files.append(file)
    return _Files(name, "tables", corpus, *files)


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

"""Task "retrieval": find the documents of a corpus that answer a query, by exact search.

`evaluation/search_collections.py` reads the collections. Judgements of unknown ids raise an InputError, or are counted
with `strict=False`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.metrics import (
    Ranked,
    average_precision,
    ndcg,
    precision,
    ranked,
    recall,
    reciprocal_rank,
)
from gemel.evaluation.search_collections import Collection, read_collections
from gemel.evaluation.task import TASKS, Bootstrap, Scores, System, Task, mean_scores, rank, search_protocol
from gemel.vectors.search import Hits
from gemel.vectors.similarity import METRICS

Gain = Literal["graded", "binary"]

DEPTH = 100  # ranks that MAP and the deep recall use, as in BEIR


@dataclass(frozen=True)
class RetrievalTask:
    """One collection, ready for any encoder or retriever."""

    collection: Collection
    metric: str
    k: int
    gain: Gain
    skip_same_id: bool
    bootstrap: Bootstrap

    @property
    def depth(self) -> int:
        """Documents per query that a system should find."""
        return max(self.k, DEPTH) + self.skip_same_id

    def score(self, encoder: System) -> Scores:
        """nDCG@k, MAP@100, MRR@k, recall and precision, each a mean over queries."""
        data = self.collection
        hits = rank(encoder, data.queries, data.corpus, self.depth, self.metric)
        return self.score_hits(hits, search_protocol(encoder, self.metric))

    def score_hits(self, hits: Hits, protocol: Mapping[str, Any]) -> Scores:
        """The numbers of what a system found; `protocol` says how."""
        data, k = self.collection, self.k
        lists = self._ranked(hits)
        values = {
            f"ndcg@{k}": ndcg(lists, k),
            f"map@{DEPTH}": average_precision(lists, DEPTH),
            f"mrr@{k}": reciprocal_rank(lists, k),
            f"recall@{k}": recall(lists, k),
            f"recall@{DEPTH}": recall(lists, DEPTH),
            f"precision@{k}": precision(lists, k),
        }
        return mean_scores(
            "retrieval", data.name, values, self._protocol(protocol), self.bootstrap, unit="queries"
        )

    def _ranked(self, hits: Hits) -> Ranked:
        data, depth = self.collection, max(self.k, DEPTH)
        index = without(hits.index, data.own_documents())[:, :depth] if self.skip_same_id else hits.index
        binary = self.gain == "binary"
        return ranked(
            index, [{p: float(g > 0) if binary else g for p, g in known.items()} for known in data.gains]
        )

    def _protocol(self, own: Mapping[str, Any]) -> dict[str, Any]:
        data = self.collection
        graded = "relevance as published" if self.gain == "graded" else "1 for any relevance above 0"
        return {
            **own,
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
    """Each collection at `path`, in the layout of BEIR or of the Hub (NanoBEIR), or as three tables.

    `gain`: "graded" takes the relevance as the gain of nDCG, "binary" takes 1 for all relevant documents. By default
    tables are binary, since published codes may run the other way (in Cranfield 1 is the best of 1 to 4), and all
    others are graded. `skip_same_id` leaves out the document with the query's own id, as BEIR does; by default in all
    but tables. `strict=False` leaves out judgements of unknown ids and counts them.
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
            gain=gain or ("binary" if collection.layout == "tables" else "graded"),
            skip_same_id=collection.layout != "tables" if skip_same_id is None else skip_same_id,
            bootstrap=Bootstrap(rounds, seed),
        )
        for collection in read_collections(Path(path), split=split, strict=strict)
    ]


def without(index: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranked positions (q, depth) without the document of each query itself; the others move up."""
    same = (index == own[:, None]) & (index >= 0)
    order = np.argsort(same, axis=1, kind="stable")
    return np.where(np.take_along_axis(same, order, axis=1), -1, np.take_along_axis(index, order, axis=1))

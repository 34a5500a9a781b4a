"""Late chunking compared with plain chunking: nDCG@10 of searches for long documents, by their best passage.

    python benchmarks/late_chunking.py             three collections, passages of 64 and 128 tokens
    python benchmarks/late_chunking.py --quick     does it work? few documents, no results file

Both have the same passages. Plain: each one is encoded alone. Late: the model reads the document as a whole (in windows
that overlap, where it is longer than the model reads) and the vectors of the tokens of each passage are averaged. A
document's score is that of its best passage. `whole` is one vector per document, cut where it is too long. Differences
have a 95 % interval from the paired bootstrap over queries.

Collections: posts of 20 newsgroups of at least 256 tokens, found by their subject, which is not part of the text (all
posts with that subject are relevant); descriptions of OpenOffice bugs, found by the title of a duplicate; Cranfield.
"""

from __future__ import annotations

import csv
import gzip
import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gemel
from comparison_flags import comparison, result_file
from gemel.evaluation.metrics import ndcg, ranked
from gemel.evaluation.statistics import MeanSample, compare
from machine import describe

MODEL = "all-MiniLM-L6-v2"
TOKENS = (64, 128)
SEED = 0


@dataclass(frozen=True)
class Collection:
    documents: list[str]
    queries: list[str]
    relevant: list[dict[int, float]]
    """For each query the gains of documents, by position."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def newsgroups(data: Path, model: gemel.Model, count: int) -> Collection:
    rng = np.random.default_rng(SEED)
    rows = rows_of(data / "clustering" / "20newsgroups.tsv.gz")
    rows = [rows[n] for n in rng.permutation(len(rows)) if rows[n]["subject"].strip()]
    some = rows[: 6 * count]
    lengths = [len(ids) for ids in model.tokenizer.content([row["text"] for row in some])]
    chosen = [row for row, tokens in zip(some, lengths, strict=True) if tokens >= 256][:count]
    by_subject: dict[str, dict[int, float]] = {}
    for position, row in enumerate(chosen):
        by_subject.setdefault(row["subject"].strip(), {})[position] = 1.0
    return Collection([row["text"] for row in chosen], list(by_subject), list(by_subject.values()))


def bugs(data: Path, _: gemel.Model, count: int) -> Collection:
    rows = rows_of(data / "retrieval" / "openoffice-duplicate-bugs.tsv.gz")[:count]
    positions: dict[str, int] = {}
    documents = []
    for row in rows:
        if row["dup_of_id"] not in positions:
            positions[row["dup_of_id"]] = len(documents)
            documents.append(row["dup_description"])
    relevant = [{positions[row["dup_of_id"]]: 1.0} for row in rows]
    return Collection(documents, [row["title"] for row in rows], relevant)


def cranfield(data: Path, _: gemel.Model, count: int) -> Collection:
    folder = data / "retrieval"
    corpus = rows_of(folder / "cranfield-corpus.tsv.gz")[:count]
    positions = {row["doc_id"]: n for n, row in enumerate(corpus)}
    gains: dict[str, dict[int, float]] = {}
    for row in rows_of(folder / "cranfield-qrels.tsv.gz"):
        if float(row["relevance"]) > 0 and row["doc_id"] in positions:
            gains.setdefault(row["query_id"], {})[positions[row["doc_id"]]] = 1.0
    queries = [row for row in rows_of(folder / "cranfield-queries.tsv.gz") if row["query_id"] in gains]
    return Collection(
        [f"{row['title']}. {row['text']}" for row in corpus],
        [row["text"] for row in queries],
        [gains[row["query_id"]] for row in queries],
    )


Reader = Callable[[Path, gemel.Model, int], Collection]
COLLECTIONS: Mapping[str, tuple[Reader, int]] = {
    "20 newsgroups": (newsgroups, 500),
    "OpenOffice bugs": (bugs, 1_500),
    "Cranfield": (cranfield, 1_400),
}
"""With the number of rows that are read."""


def scores(
    collection: Collection, queries: NDArray[np.float32], passages: NDArray[Any], owners: NDArray[np.int64]
) -> NDArray[np.float64]:
    """nDCG@10 of each query; a document has the score of its best passage."""
    similar = np.asarray(queries @ passages.T)
    best = np.full((len(queries), len(collection.documents)), -np.inf, dtype=np.float32)
    np.maximum.at(best.T, owners, similar.T)
    top = np.argsort(-best, axis=1, kind="stable")[:, :10]
    return np.asarray(ndcg(ranked(top, collection.relevant), 10))


def measure(name: str, model: gemel.Model, options: Namespace) -> dict[str, Any]:
    read, count = COLLECTIONS[name]
    collection = read(options.data, model, 60 if options.quick else count)
    queries = np.asarray(model.encode_query(collection.queries, threads=options.threads))
    settings = {"threads": options.threads}
    every = np.arange(len(collection.documents))
    whole = model.encode_document(collection.documents, on_long="truncate", **settings)
    facts: dict[str, Any] = {
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "tokens": int(sum(map(len, model.tokenizer.content(collection.documents)))),
        "whole": float(scores(collection, queries, whole, every).mean()),
        "passages": {},
    }
    for tokens in TOKENS:
        made: dict[str, NDArray[np.float64]] = {}
        row: dict[str, Any] = {}
        for chunks in ("plain", "late"):
            start = time.perf_counter()
            passages = model.encode_passages(
                collection.documents, by="passage", tokens=tokens, chunks=chunks, **settings
            )
            row[f"{chunks}_seconds"] = round(time.perf_counter() - start, 2)
            made[chunks] = scores(collection, queries, passages.vectors, passages.texts)
            row |= {chunks: float(made[chunks].mean()), "count": len(passages)}
        row["late_minus_plain"] = compare(
            MeanSample(made["plain"]), MeanSample(made["late"]), seed=SEED
        ).to_json()
        facts["passages"][str(tokens)] = row
        found = row["late_minus_plain"]
        print(
            f"{name:16} {tokens:4} tokens   whole {facts['whole']:.4f}   plain {row['plain']:.4f}   "
            f"late {row['late']:.4f}   difference {found['difference']:+.4f} "
            f"[{found['low']:+.4f}, {found['high']:+.4f}]   "
            f"{row['plain_seconds']:.0f} s, {row['late_seconds']:.0f} s",
            flush=True,
        )
    return facts


def main() -> None:
    options = comparison(__doc__, "late-chunking.json", data="clustering/, retrieval/").parse_args()
    if not (options.data / "retrieval").is_dir():
        raise SystemExit(f"no data in {options.data}")
    model = gemel.load(MODEL)
    machine = describe()
    results = {name: measure(name, model, options) for name in COLLECTIONS}
    if out := result_file(options):
        made = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {
            "made": made,
            "machine": machine,
            "model": MODEL,
            "max_length": model.max_length,
            "threads": options.threads,
            "metric": "nDCG@10",
            "results": results,
        }
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Every kind of search side by side: words, dense, sparse, late, hybrids of them, and each reranked.

    python benchmarks/kinds.py --sparse FOLDER --late FOLDER             everything, some minutes
    python benchmarks/kinds.py --sparse FOLDER --late FOLDER --quick     does it work? a part of one collection, no file

Three collections: Cranfield, Vaswani, and the answer sentences of WikiQA (test), in which each question is a query and
all sentences are the corpus. Of a larger collection 5,000 documents are used: all relevant ones, and the first others.
A reranker sorts the best 50 documents of the searches by words, by vectors and by both; by default the late model does.
Quality has 95 % bootstrap intervals. Costs are those of a whole batch on this machine, divided by the number of texts.
Every document is compared.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from comparison_flags import comparison, result_file
from machine import describe

MODEL = "all-MiniLM-L6-v2"
CANDIDATES = 50
NUMBERS = ("ndcg@10", "mrr@10", "recall@100")
DOCUMENTS = 5_000
QUICK = 20, 200  # queries and documents
RERANKED = ("dense", "words", "dense + words")


def collections(data: Path, documents: int, *, quick: bool) -> list[Any]:
    """The collections as tasks, each of at most so many documents; `quick`: a part of the first one."""
    from gemel.evaluation.task import load_task

    folder = data / "retrieval"
    tasks: list[Any] = load_task("retrieval", folder / "cranfield")
    if quick:
        few, fewer = QUICK
        own = tasks[0].collection
        queries = {name: getattr(own, name)[:few] for name in ("query_ids", "queries", "gains")}
        return [replace(tasks[0], collection=part_of(replace(own, **queries), fewer))]
    tasks += load_task("retrieval", folder / "vaswani")
    tasks.append(replace(tasks[0], collection=passages(folder / "wikiqa-test.tsv.gz")))
    return [replace(task, collection=part_of(task.collection, documents)) for task in tasks]


def passages(path: Path) -> Any:  # noqa: ANN401 - a collection
    """A table of questions and labeled sentences as a collection: each distinct sentence is a document."""
    from gemel.evaluation.data import read_table
    from gemel.evaluation.search_collections import Collection

    table = read_table(path)
    documents: dict[str, int] = {}
    questions: dict[str, dict[int, float]] = {}
    rows = zip(table.texts("question"), table.texts("answer_sentence"), table.numbers("label"), strict=True)
    for question, sentence, label in rows:
        position = documents.setdefault(sentence, len(documents))
        known = questions.setdefault(question, {})
        known[position] = max(known.get(position, 0.0), float(label))
    kept = {question: known for question, known in questions.items() if max(known.values()) > 0}
    return Collection(
        name="wikiqa",
        layout="tables",
        query_ids=tuple(f"q{number}" for number in range(len(kept))),
        queries=tuple(kept),
        doc_ids=tuple(map(str, range(len(documents)))),
        corpus=tuple(documents),
        gains=tuple(kept.values()),
        left_out=len(questions) - len(kept),
    )


def part_of(collection: Any, documents: int) -> Any:  # noqa: ANN401 - collections
    """At most so many documents: those that are relevant to a query, and the first others, in their order."""
    relevant = {position for known in collection.gains for position, gain in known.items() if gain > 0}
    others = [position for position in range(len(collection.corpus)) if position not in relevant]
    kept = sorted([*relevant, *others[: max(0, documents - len(relevant))]])
    place = {position: number for number, position in enumerate(kept)}
    return replace(
        collection,
        doc_ids=tuple(collection.doc_ids[position] for position in kept),
        corpus=tuple(collection.corpus[position] for position in kept),
        gains=tuple(
            {place[position]: gain for position, gain in known.items() if position in place}
            for known in collection.gains
        ),
    )


def hybrids(names: list[str]) -> tuple[Mapping[str, float], ...]:
    """Words with each model, and all together."""
    others = [name for name in names if name != "words"]
    pairs = [dict.fromkeys((name, "words"), 1.0) for name in others]
    return (*pairs, *([dict.fromkeys(names, 1.0)] if len(others) > 1 else []))


def row_of(result: Any, compared: list[Any]) -> dict[str, Any]:  # noqa: ANN401 - scores
    """One search on one collection, as it is stored."""
    row: dict[str, Any] = {"dataset": result.dataset, "search": result.model}
    for name in NUMBERS:
        score = result.values[name]
        row[name] = [
            None if number is None else round(number, 2) for number in (score.value, score.low, score.high)
        ]
    if compared:
        pair = compared[0].comparison
        row["difference"] = [round(number, 2) for number in (pair.difference, pair.low, pair.high)]
    return {**row, **{name: round(cost, 3) for name, cost in result.costs.items()}}


def main() -> None:
    parser: argparse.ArgumentParser = comparison(__doc__, "kinds.json", data="retrieval/")
    parser.add_argument("--dense", default=MODEL, help=f"a sentence encoder; default {MODEL}")
    parser.add_argument("--sparse", help="a sparse encoder; default none")
    parser.add_argument("--late", help="a model for late interaction; default none")
    parser.add_argument(
        "--rerank", help="a cross-encoder or a model for late interaction; default that of --late"
    )
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="the most of a collection")
    parser.add_argument("--late-form", default="float16", choices=("float32", "float16", "int8"))
    options = parser.parse_args()
    os.environ.setdefault("GEMEL_THREADS", str(options.threads))
    import gemel
    from gemel.evaluation.baselines import BM25
    from gemel.evaluation.search_comparison import SearchPlan, compared_searches
    from gemel.texts.late_model import load_reranker

    systems: dict[str, Any] = {"dense": Truncating(gemel.load(options.dense)), "words": BM25()}
    if options.sparse:
        systems["sparse"] = Truncating(gemel.load_sparse(options.sparse))
    if options.late:
        systems["late"] = Truncating(gemel.load_late(options.late))
    reranker = options.rerank or options.late
    plan = SearchPlan(
        systems,
        hybrids(list(systems)),
        None if reranker is None else load_reranker(reranker),
        CANDIDATES,
        options.late_form,
        RERANKED,
    )
    tasks = collections(options.data, options.documents, quick=options.quick)
    rows = []
    for result, compared in compared_searches(tasks, plan):
        rows.append(row_of(result, compared))
        print(json.dumps(rows[-1]), flush=True)
    if out := result_file(options):
        names = {"dense": options.dense, "sparse": options.sparse, "late": options.late, "rerank": reranker}
        facts = {
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe(),
            "threads": options.threads,
            "models": {kind: Path(name).name for kind, name in names.items() if name},
            "late_form": options.late_form,
            "candidates": CANDIDATES,
            "sets": {
                each.collection.name: {
                    "queries": len(each.collection.queries),
                    "documents": len(each.collection.corpus),
                }
                for each in tasks
            },
            "rows": rows,
        }
        out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Truncating:
    """A model that cuts long texts without a warning. Everything else is that of the model."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - a model of any kind
        self._model = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        return getattr(self._model, name)

    def encode_query(self, texts: Any) -> Any:  # noqa: ANN401 - texts to whatever the model gives
        return self._model.encode_query(texts, on_long="truncate")

    def encode_document(self, texts: Any) -> Any:  # noqa: ANN401 - as above
        return self._model.encode_document(texts, on_long="truncate")


if __name__ == "__main__":
    main()

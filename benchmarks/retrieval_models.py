"""Train a sparse encoder (SPLADE) and a model for late interaction (ColBERT) from a sentence encoder, and score them.

    python benchmarks/retrieval_models.py --work FOLDER                  data, both models, scores
    python benchmarks/retrieval_models.py --work FOLDER --only sparse    one of them
    python benchmarks/retrieval_models.py --work FOLDER --score          no training: score the models that are there

The pairs are questions and answers (WikiQA), duplicate questions (QQP) and bug reports (OpenOffice), and subjects and
posts (20 Newsgroups). `gemel.mine_negatives` adds one hard negative to each; the start model itself guides the ranking
(GISTEmbed): what it finds nearer than the positive is no negative. Vaswani and Cranfield, on which the models are
scored, are not among the data. The results are in results/retrieval_models.json.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from machine import describe

HERE = Path(__file__).parent
CHARACTERS = 200  # of a document
PAIRS = {"wikiqa": 2000, "qqp": 2500, "bugs": 2500, "newsgroups": 4000}
TRAINING: dict[str, dict[str, Any]] = {
    "sparse": {"learning_rate": 1e-4, "query_flops": 0.02, "document_flops": 0.01, "flops_warmup": 0.5},
    "late": {"learning_rate": 1e-4, "token_dim": 96},
}


def table(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def pairs(data: Path) -> list[tuple[str, str]]:
    """Queries and documents that answer them."""
    found: dict[str, list[tuple[str, str]]] = {
        "wikiqa": [
            (row["question"], row["answer_sentence"])
            for row in table(data / "retrieval" / "wikiqa-train.tsv.gz")
            if row["label"] == "1"
        ],
        "qqp": [
            (row["question1"], row["question2"])
            for row in table(data / "paraphrase" / "qqp-train-subset.tsv.gz")
            if row["label"] == "1"
        ],
        "bugs": [
            (row["title"], f"{row['dup_title']} {row['dup_description']}")
            for row in table(data / "retrieval" / "openoffice-duplicate-bugs.tsv.gz")
        ],
        "newsgroups": [
            (row["subject"], row["text"])
            for row in table(data / "clustering" / "20newsgroups.tsv.gz")
            if len(row["subject"].split()) > 2 and len(row["text"]) > 100
        ],
    }
    rows = []
    for name, given in found.items():
        chosen = np.random.default_rng(0).permutation(len(given))[: PAIRS[name]]
        rows += [(given[row][0], given[row][1][:CHARACTERS]) for row in sorted(chosen)]
    return list(dict.fromkeys(row for row in rows if all(text.strip() for text in row)))


def prepare(options: argparse.Namespace) -> Path:
    """The training data with a hard negative for each pair, as JSON lines."""
    import gemel

    path: Path = options.work / "pairs.jsonl"
    if path.exists():
        return path
    rows = pairs(options.data)
    corpus = list(dict.fromkeys(document for _, document in rows))
    model = gemel.load(options.start)
    mined = gemel.mine_negatives(
        model,
        rows,
        corpus,
        k=1,
        skip=2,
        candidates=30,
        precision="int8",  # enough to find candidates
        threads=options.threads,
        on_long="truncate",
    )
    with path.open("w", encoding="utf-8") as file:
        for query, positive, (negative,) in zip(mined.queries, mined.positives, mined.index, strict=True):
            if negative >= 0:
                row = {"anchor": query, "positive": positive, "negative": corpus[negative]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def train(kind: str, data: Path, options: argparse.Namespace) -> None:
    import gemel

    out = options.work / kind
    if (out / "README.md").exists():
        return
    gemel.train(
        options.start,
        data,
        objective="in-batch-ranking",
        settings={"guide": options.start},
        kind=kind,
        out=out,
        resume=(out / "training").exists(),
        batch_size=options.batch_size,
        max_steps=options.steps,
        max_length=56,
        threads=options.threads,
        progress=True,
        force=True,
        **TRAINING[kind],
    )
    if options.publish:
        publish(out, options.publish / kind)


def publish(model: Path, target: Path) -> None:
    """A copy without the files of the run, put in place by renaming."""
    target.parent.mkdir(parents=True, exist_ok=True)
    working, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    shutil.rmtree(working, ignore_errors=True)
    shutil.copytree(model, working, ignore=shutil.ignore_patterns("training"))
    if target.exists():
        target.rename(old)
    working.rename(target)
    shutil.rmtree(old, ignore_errors=True)


Ranker = Callable[[list[str], list[str]], np.ndarray[Any, Any]]


def rankers(options: argparse.Namespace) -> dict[str, Ranker]:
    """(queries, documents) of scores, by each model."""
    import gemel

    def dense(queries: list[str], documents: list[str]) -> np.ndarray[Any, Any]:
        model = gemel.load(options.start)
        left, right = (
            model.encode(texts, threads=options.threads, on_long="truncate") for texts in (queries, documents)
        )
        return left @ right.T

    def sparse(queries: list[str], documents: list[str]) -> np.ndarray[Any, Any]:
        model = gemel.load_sparse(options.work / "sparse")
        left = model.encode_query(queries, threads=options.threads, on_long="truncate")
        right = model.encode_document(documents, threads=options.threads, on_long="truncate")
        words = [len(each.indices) / len(each) for each in (left, right)]
        print(f"  words per query {words[0]:.0f}, per document {words[1]:.0f}")
        return left.similarity(right)

    def late(queries: list[str], documents: list[str]) -> np.ndarray[Any, Any]:
        model = gemel.load_late(options.work / "late")
        left = model.encode_query(queries, threads=options.threads, on_long="truncate")
        right = model.encode_document(documents, threads=options.threads, on_long="truncate")
        return np.stack([gemel.maxsim(left.of(row), right) for row in range(len(queries))])

    every: dict[str, Ranker] = {"start": dense, "sparse": sparse, "late": late}
    return {
        name: every[name] for name in every if name == "start" or (options.work / name / "README.md").exists()
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """nDCG@10 of each model on each collection."""
    results: dict[str, Any] = {}
    for collection in ("vaswani", "cranfield"):
        folder = options.data / "retrieval"
        corpus = [row["text"] for row in table(folder / f"{collection}-corpus.tsv.gz")]
        ids = [row["doc_id"] for row in table(folder / f"{collection}-corpus.tsv.gz")]
        queries = {row["query_id"]: row["text"] for row in table(folder / f"{collection}-queries.tsv.gz")}
        relevant: dict[str, dict[str, float]] = {}
        for row in table(folder / f"{collection}-qrels.tsv.gz"):
            relevant.setdefault(row["query_id"], {})[row["doc_id"]] = max(0.0, float(row["relevance"]))
        asked = [number for number in queries if any(relevant.get(number, {}).values())]
        if options.documents:  # a part, for a quick look: judged documents and some others
            judged = {document for number in asked for document in relevant[number]}
            kept = [row for row, name in enumerate(ids) if name in judged][: options.documents]
            kept += [row for row, name in enumerate(ids) if name not in judged][
                : options.documents - len(kept)
            ]
            ids, corpus = [ids[row] for row in kept], [corpus[row] for row in kept]
        for name, ranker in rankers(options).items():
            scores = ranker([queries[number] for number in asked], corpus)
            values = [ndcg(scores[row], ids, relevant[number]) for row, number in enumerate(asked)]
            results.setdefault(name, {})[collection] = 100 * float(np.mean(values))
            print(collection, name, f"nDCG@10 {results[name][collection]:.2f}", flush=True)
    return results


def ndcg(scores: np.ndarray[Any, Any], ids: list[str], relevant: dict[str, float]) -> float:
    best = np.argsort(-scores, kind="stable")[:10]
    gains = np.array([relevant.get(ids[row], 0.0) for row in best])
    ideal = np.sort(list(relevant.values()))[::-1][:10]
    discount = 1 / np.log2(np.arange(2, 12))
    return float((gains * discount[: len(gains)]).sum() / (ideal * discount[: len(ideal)]).sum())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--start", default="all-MiniLM-L6-v2")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=("sparse", "late"))
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--documents", type=int, help="score on so many documents only")
    parser.add_argument("--publish", type=Path, help="a folder for copies of the models")
    parser.add_argument("--out", type=Path, help="default: results/retrieval_models.json, unless --documents")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.score:
        data = prepare(options)
        for kind in ("sparse", "late") if options.only is None else (options.only,):
            train(kind, data, options)
    results = measure(options)
    out = options.out or (None if options.documents else HERE / "results" / "retrieval_models.json")
    if out is not None:
        content = {"machine": describe(), "steps": options.steps, "ndcg@10": results}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

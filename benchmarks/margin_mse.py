"""Distillation from a cross-encoder, end to end: margin-MSE compared with in-batch ranking on the same pairs.

    python benchmarks/margin_mse.py --work FOLDER            all five parts
    python benchmarks/margin_mse.py --work FOLDER --quick    a smoke test without a results file

1. A cross-encoder learns which answers and duplicate questions belong together (WikiQA and QQP, training data).
2. `gemel.mine_negatives` finds hard negatives for the positive pairs.
3. The cross-encoder scores positives and negatives; the difference is the margin.
4. A student learns the margins (margin-mse), another one ranks the same texts in the batch (in-batch-ranking).
5. Both are scored on the test set of WikiQA, with the interval of their difference (paired bootstrap).

A part that is in the folder already is not made again. The results are in results/margin_mse.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from machine import describe
from retrieval_models import table

HERE = Path(__file__).parent
NEGATIVES = 2


def labeled_pairs(data: Path, rows: int) -> list[tuple[str, str, int]]:
    """Questions and answers, and questions twice: 1 if they belong together. Half of the rows of each set."""
    random = np.random.default_rng(0)
    wikiqa = [
        (row["question"], row["answer_sentence"], int(row["label"]))
        for row in table(data / "retrieval" / "wikiqa-train.tsv.gz")
    ]
    # Nearly nine of ten answers are wrong: all right ones, and as many wrong ones for each as there is room for.
    right = [row for row in wikiqa if row[2]]
    wrong = [row for row in wikiqa if not row[2]]
    wikiqa = right[: rows // 4] + [wrong[at] for at in random.permutation(len(wrong))[: rows // 4]]
    qqp = [
        (row["question1"], row["question2"], int(row["label"]))
        for row in table(data / "paraphrase" / "qqp-train-subset.tsv.gz")
    ]
    return [*wikiqa, *(qqp[at] for at in sorted(random.permutation(len(qqp))[: rows // 2]))]


def teacher(rows: list[tuple[str, str, int]], options: argparse.Namespace) -> Path:
    import gemel

    out: Path = options.work / "teacher"
    if not (out / "README.md").exists():
        gemel.train(
            options.teacher,
            rows,
            kind="cross-encoder",
            objective="regression",
            columns={"label": "label"},
            out=out,
            resume=(out / "training").exists(),
            batch_size=32,
            learning_rate=5e-5,
            max_length=96,
            threads=options.threads,
            progress=True,
            force=True,
        )
    return out


def margins(rows: list[tuple[str, str, int]], options: argparse.Namespace) -> Path:
    """Queries, positives, mined negatives and the margins of the teacher, as JSON lines."""
    import gemel

    path: Path = options.work / "margins.jsonl"
    if path.exists():
        return path
    pairs = list(dict.fromkeys((query, document) for query, document, label in rows if label))
    corpus = list(dict.fromkeys(document for _, document, _ in rows))
    shared = {"threads": options.threads, "on_long": "truncate"}
    mined = gemel.mine_negatives(gemel.load(options.teacher), pairs, corpus, k=NEGATIVES, skip=1, **shared)
    cross = gemel.load_cross(options.work / "teacher")
    scores = cross.scores(mined.queries, mined.positives, **shared)
    with path.open("w", encoding="utf-8") as file:
        for column in range(NEGATIVES):
            kept = np.flatnonzero(mined.index[:, column] >= 0)
            queries = [mined.queries[row] for row in kept]
            negatives = [corpus[mined.index[row, column]] for row in kept]
            others = cross.scores(queries, negatives, **shared)
            for row, negative, other in zip(kept, negatives, others, strict=True):
                content = {
                    "anchor": mined.queries[row],
                    "positive": mined.positives[row],
                    "negative": negative,
                    "margin": float(scores[row] - other),
                }
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
    return path


def student(objective: str, data: Path, options: argparse.Namespace) -> Path:
    import gemel

    out: Path = options.work / objective
    if not (out / "README.md").exists():
        gemel.train(
            options.student,
            data,
            objective=objective,
            settings={"score": "cosine"},
            out=out,
            resume=(out / "training").exists(),
            batch_size=32,
            learning_rate=1e-4,
            epochs=options.epochs,
            max_length=96,
            threads=options.threads,
            progress=True,
            force=True,
        )
    return out


def measure(folders: dict[str, str | Path], options: argparse.Namespace) -> dict[str, Any]:
    """The mean average precision of each model, and the difference of the two students."""
    import gemel
    from gemel.evaluation.statistics import compare

    results: dict[str, Any] = {}
    samples = {}
    for name, folder in folders.items():
        [scores] = gemel.evaluate(
            folder, task="reranking", data=options.data / "retrieval" / "wikiqa-test.tsv.gz"
        )
        main = scores.values[scores.main]
        results[name] = {"metric": scores.main, "value": main.value, "low": main.low, "high": main.high}
        samples[name] = scores.sample
        print(f"{name}: {scores.main} {main.value:.2f} [{main.low:.2f}, {main.high:.2f}]", flush=True)
    difference = compare(samples["in-batch-ranking"], samples["margin-mse"])
    results["margin-mse - in-batch-ranking"] = difference.to_json()
    print("difference:", json.dumps(difference.to_json()))
    return results


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = HERE.parent.parent / "shared"
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--teacher", default="all-MiniLM-L6-v2", help="what the cross-encoder starts from")
    parser.add_argument("--student", default=str(shared / "weights" / "tinybert-4L-312"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4000, help="labeled pairs for the teacher")
    parser.add_argument("--epochs", type=float, default=1.0, help="of the students")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "margin_mse.json")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = labeled_pairs(options.data, 200 if options.quick else options.rows)
    cross = teacher(rows, options)
    data = margins(rows, options)
    models: dict[str, str | Path] = {"student before": options.student, "teacher": cross}
    models |= {name: student(name, data, options) for name in ("in-batch-ranking", "margin-mse")}
    results = measure(models, options)
    if not options.quick:
        content = {"machine": describe(), "rows": options.rows, "epochs": options.epochs, "results": results}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

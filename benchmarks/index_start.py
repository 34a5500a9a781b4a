"""Time to the first answer of a new process from an index, and speed of batches of queries next to `gemel.search`.

    python benchmarks/index_start.py            # some minutes; writes results/index_start.json
    python benchmarks/index_start.py --quick    # does it work? small, nothing is written

Start: a fresh process, from its start to the first answer; best and median of several, systems in turns. "saved": the
process finds the snapshot that an earlier search saved. "changed": the table was changed since, so that Lance is loaded
and the table is read. The parts are measured inside another process that takes the same steps one by one.

Batches: `Index.search_many`, default and exact, and `gemel.search` over the same vectors in an array; in turns in one
process, best of several. `gemel.search` gives numbers of rows and scores; the index gives ids, texts and fields too.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import pair_data
from comparison_flags import WORK, comparison, result_file
from machine import describe
from workers import say, surroundings

MODEL = "all-MiniLM-L6-v2"
SIZES = (2_000, 60_000)
BATCHES = (64, 256, 500)
K = 10
# Exactly what a user writes.
PROGRAMS = {
    "text": "import gemel; gemel.open_index({folder!r}).search('a man plays a guitar on a stage')",
    "vector": (
        "import gemel, numpy as np; v = np.load({query!r}); gemel.open_index({folder!r}, read_only=True).search(v)"
    ),
}
_END = "\nimport sys, time; print(time.monotonic(), 'lance' in sys.modules, 'pandas' in sys.modules)"
_PARTS = """
import json, time
marks = [("interpreter", time.monotonic())]
def mark(name):
    marks.append((name, time.monotonic()))
import numpy; mark("import numpy")
import gemel; gemel.open_index; mark("import gemel.index")
import gemel.index.lance.store; mark("import gemel.index.lance")
index = gemel.open_index({folder!r}); mark("open the index")
index.model; mark("load the model")
vector = index.model.encode_query(["a man plays a guitar on a stage"])[0]; mark("encode the query")
index.search(vector); mark("search")
print(json.dumps(marks))
"""


def make_index(rows: int, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """The folder of an index, the vectors in it, and those of queries; made once."""
    import gemel

    vectors, location = pair_data.clustered(rows, folder), folder / f"{name}-{rows}"
    queries, query = pair_data.clustered(max(BATCHES), folder, seed=1), folder / "start-query.npy"
    if not query.exists():
        np.save(query, np.load(queries)[0])
    made = location.with_suffix(".made")
    if not made.exists():
        shutil.rmtree(location, ignore_errors=True)
        with gemel.open_index(location, MODEL) as index:
            texts = [f"made-up text number {number} of a collection" for number in range(rows)]
            fields = {"year": [1950 + number % 75 for number in range(rows)]}
            index.add(texts, ids=range(rows), vectors=np.load(vectors), fields=fields, block=20_000)
            index.compact()
        made.touch()
    return location, vectors, queries


def change(location: Path) -> None:
    """One document is written again: another version, and no snapshot of it."""
    import gemel

    with gemel.open_index(location) as index:
        index.upsert(
            [f"another text {time.time_ns()}"], ids=["0"], vectors=np.eye(1, index.dim, dtype=np.float32)
        )


def first_answers(rows: int, folder: Path, options: Any) -> dict[str, Any]:  # noqa: ANN401 - of argparse
    location, _, _ = make_index(rows, folder, "start")
    names = {"folder": str(location), "query": str(folder / "start-query.npy")}
    seconds: dict[str, list[float]] = {}
    loaded: dict[str, list[str]] = {}
    parts: dict[str, list[float]] = {}
    for turn in range(options.rounds + 1):  # the first one only warms the disk cache
        for kind, program in PROGRAMS.items():
            for state in ("changed", "saved"):  # the search after a change saves what the next one finds
                if state == "changed":
                    change(location)
                took, packages = _first_answer(program.format(**names), options.threads)
                if turn:
                    seconds.setdefault(f"{kind}, {state}", []).append(took)
                    loaded[f"{kind}, {state}"] = packages
        for name, took in _parts(_PARTS.format(**names), options.threads):
            if turn:
                parts.setdefault(name, []).append(took)
    return {
        "rows": rows,
        "first_answer": {
            name: {
                "best_seconds": min(all_),
                "median_seconds": statistics.median(all_),
                "loaded": loaded[name],
                "seconds": all_,
            }
            for name, all_ in seconds.items()
        },
        "parts": {name: min(all_) for name, all_ in parts.items()},
    }


def _first_answer(program: str, threads: int) -> tuple[float, list[str]]:
    start = time.monotonic()
    end, *loaded = _output(program + _END, threads).split()
    names = [name for name, there in zip(("lance", "pandas"), loaded, strict=True) if there == "True"]
    return float(end) - start, names


def _parts(program: str, threads: int) -> list[tuple[str, float]]:
    before = time.monotonic()
    out = []
    for name, at in json.loads(_output(program, threads)):
        out.append((name, at - before))
        before = at
    return out


def _output(program: str, threads: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=surroundings(threads, ours=True),
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"a measured program failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def batches(rows: int, folder: Path, options: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    import gemel

    location, vectors, queries = make_index(rows, folder, "batches")  # which is not changed
    array, all_queries = np.load(vectors), np.load(queries)
    out = []
    with gemel.open_index(location) as index:
        for size in BATCHES:
            some = all_queries[:size]
            ways = {
                "gemel.search": lambda some=some: gemel.search(some, array, K),
                "search_many": lambda some=some: index.search_many(some, K),
                "search_many exact": lambda some=some: index.search_many(some, K, exact=True),
            }
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(options.rounds + 1):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way()
                    if turn:
                        seconds[name].append(time.perf_counter() - start)
            best = {name: min(all_) for name, all_ in seconds.items()}
            ratios = {name: took / best["gemel.search"] for name, took in best.items()}
            out.append({"queries": size, "best_seconds": best, "ratio": ratios, "seconds": seconds})
    return out


def table(starts: list[dict[str, Any]], many: list[dict[str, Any]], rows: int) -> list[str]:
    lines = []
    for one in starts:
        lines.append(f"{one['rows']:,} rows, start to first answer (best, median)")
        for name, result in one["first_answer"].items():
            loaded = ", ".join(result["loaded"]) or "neither lance nor pandas"
            times = f"{result['best_seconds']:6.3f} s {result['median_seconds']:6.3f} s"
            lines.append(f"  {name:20} {times}   loads {loaded}")
        lines += [f"    {name:26} {took * 1000:5.0f} ms" for name, took in one["parts"].items()]
    lines.append(f"batches over {rows:,} x {pair_data.DIM}, times of gemel.search in brackets")
    for one in many:
        cells = [
            f"{name} {took * 1000:7.1f} ms ({one['ratio'][name]:.2f})"
            for name, took in one["best_seconds"].items()
        ]
        lines.append(f"  {one['queries']:4} queries: " + "   ".join(cells))
    return lines


def main() -> None:
    options = comparison(__doc__, "index_start.json", rounds=7).parse_args()
    if options.quick:
        options.rounds = 1
    folder = WORK / "work" / "index"
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe()
    starts = []
    for rows in SIZES[: 1 if options.quick else None]:
        say(f"start to first answer, {rows:,} rows")
        starts.append(first_answers(rows, folder, options))
    rows = SIZES[0] if options.quick else SIZES[-1]
    say(f"batches, {rows:,} rows")
    many = batches(rows, folder, options)
    print("\n".join(table(starts, many, rows)))
    if out := result_file(options):
        facts = {
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "model": MODEL,
            "threads": options.threads,
            "rounds": options.rounds,
            "starts": starts,
            "batches": {"rows": rows, "dim": pair_data.DIM, "k": K, "sizes": many},
        }
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

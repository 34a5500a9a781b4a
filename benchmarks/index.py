"""The index, ours and the peers in one run: the same vectors, threads and queries.

    python benchmarks/index.py                        everything
    python benchmarks/index.py --only 200000 --systems gemel,faiss-hnsw
    python benchmarks/index.py --only 1000000 --systems gemel --out benchmarks/results/index-1m.json
    python benchmarks/index.py --quick                does everything work? 10,000 rows, few queries, no results file

Every system runs in its own process, stopped while another is measured; building and querying are separate
processes, so that opening is measured cold. Index libraries (faiss, usearch) keep vectors and numbers only; the others
give texts and fields with each answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import index_data
from comparison_flags import WORK, comparison, environments_of, result_file
from machine import describe
from workers import Worker, WorkerError, attempt, say, surroundings

TITLES = {
    "gemel": "gemel",
    "gemel-postgres": "gemel on PostgreSQL",
    "faiss-hnsw": "faiss HNSW16",
    "faiss-ivf-sq8": "faiss IVF1024,SQ8",
    "usearch": "usearch HNSW16",
    "lancedb": "lancedb IVF_HNSW_SQ",
    "pgvector": "pgvector HNSW by hand",
}
OURS = ("gemel", "gemel-postgres")
FLOORS = (0.95, 0.99)
_MOST_SENTENCES = 500_000
GROWTH = {10_000: tuple(TITLES), 200_000: tuple(TITLES), 1_000_000: ("gemel", "faiss-ivf-sq8")}


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "index.json", data="captions/, nli/", rounds=3)
    add = made.add_argument
    add("--model", default="all-MiniLM-L6-v2")
    add(
        "--only",
        help="numbers of rows, comma-separated; default 10000,200000,1000000 (the last is synthetic)",
    )
    add("--systems", help="names, comma-separated")
    add("--synthetic", action="store_true", help="random vectors in clusters for every number of rows")
    add("--queries", type=int, default=500, help="single queries a measurement")
    return made


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._environments = environments_of(options)
        self._folder = WORK / "work" / "index"
        self._folder.mkdir(parents=True, exist_ok=True)

    def size(self, count: int) -> dict[str, Any]:
        # Encoding half a million sentences would take longer than all measurements.
        made = None
        if count <= _MOST_SENTENCES and not self._options.synthetic:
            made = index_data.sentences(count, self._folder, self._options.data, self._options.model)
        data = index_data.synthetic(count, self._folder) if made is None else made
        requested = (
            self._options.systems.split(",") if self._options.systems else GROWTH.get(count, tuple(TITLES))
        )
        say(data.title)
        result: dict[str, dict[str, Any]] = {name: {"title": TITLES[name]} for name in requested}
        for name in requested:
            attempt(result[name], lambda name=name: self._build(name, data, result[name]))
        self._ask(data, {name: entry for name, entry in result.items() if "failed" not in entry})
        return {"title": data.title, "rows": count, "systems": result}

    def _worker(self, name: str, data: index_data.Data, *, fresh: bool) -> tuple[Worker, dict[str, Any]]:
        ours = name in OURS
        python = Path(sys.executable) if ours else self._environments.python("index")
        worker = Worker(
            name,
            python,
            "index_peer.py",
            surroundings(self._options.threads, ours=ours),
            self._folder / f"{name}.log",
        )
        facts = worker.ask(
            "load",
            system=name,
            folder=str(self._folder / f"{name}-{data.count}"),
            corpus=str(data.corpus),
            queries=str(data.queries),
            texts=str(data.texts),
            truth=str(index_data.truth(data, self._folder)),
            threads=self._options.threads,
            fresh=fresh,
        )
        return worker, facts

    def _build(self, name: str, data: index_data.Data, entry: dict[str, Any]) -> None:
        worker, facts = self._worker(name, data, fresh=True)
        try:
            entry.update(facts)
            entry["build"] = worker.ask("build", timeout_s=3000)
            say(f"  {entry['title']:24} built in {entry['build']['seconds']:7.1f} s")
        finally:
            worker.close()

    def _ask(self, data: index_data.Data, result: dict[str, dict[str, Any]]) -> None:
        for name, entry in result.items():
            attempt(entry, lambda name=name, entry=entry: self._questions(name, data, entry))

    def _questions(self, name: str, data: index_data.Data, entry: dict[str, Any]) -> None:
        worker, _ = self._worker(name, data, fresh=False)
        count, rounds = self._options.queries, 1 if self._options.quick else self._options.rounds
        try:
            entry["open"] = worker.ask("open")
            entry["curve"] = worker.ask("sweep", timeout_s=1200)["points"]
            at = _setting(entry["curve"], ours=name in OURS)
            entry["single"] = _best(worker.ask("ask", count=count, setting=at) for _ in range(rounds))
            for only in ("one_percent", "half"):
                try:
                    requested = (
                        worker.ask("ask", count=min(count, 200), setting=at, only=only) for _ in range(rounds)
                    )
                    entry[only] = _best(requested)
                except WorkerError as error:
                    entry[only] = {"failed": str(error)}
            if name == "gemel":
                entry["sentence"] = worker.ask("sentence", model=self._options.model, count=200)
            entry["change"] = worker.ask("change", timeout_s=1200)
            one = entry["single"]
            say(f"  {entry['title']:24} p50 {one['p50_ms']:6.2f} ms at recall {one['recall']:.3f}")
        finally:
            worker.close()


def _best(answers: Any) -> dict[str, Any]:  # noqa: ANN401 - an iterator of answers
    best: dict[str, Any] = min(answers, key=lambda answer: answer["p50_ms"])
    return best


def _setting(curve: list[dict[str, Any]], *, ours: bool) -> int:
    """gemel: its default. Peers: the fastest setting with a recall of 0.98, or their most thorough one."""
    if ours:
        return 0
    good = [at for at, point in enumerate(curve) if point["recall"] >= 0.98]
    return max(good, key=lambda at: curve[at]["per_second"]) if good else len(curve) - 1


def table(size: dict[str, Any]) -> list[str]:
    lines = [
        size["title"],
        f"{'':24} {'build s':>8} {'MB':>6} {'peak':>6} {'open s':>7} {'p50 ms':>7} {'p95':>7} {'recall':>7}"
        f" {'1 %: ms':>8} {'recall':>7} {'50 %: ms':>8} {'recall':>7} {'/s .95':>7} {'/s .99':>7}"
        f" {'+1k ms':>7} {'-1k ms':>7}",
    ]
    for entry in size["systems"].values():
        if "failed" in entry:
            lines.append(f"{entry['title']:24} {entry['failed'][:100]}")
            continue
        build, single, change = entry["build"], entry["single"], entry["change"]
        cells = [f"{build['seconds']:8.1f} {build['mb']:6.0f} {build['peak_mb']:6.0f}"]
        cells.append(f"{entry['open']['seconds']:7.2f} {single['p50_ms']:7.2f} {single['p95_ms']:7.2f}")
        cells.append(f"{single['recall']:7.3f}")
        for only in ("one_percent", "half"):
            part = entry[only]
            cells.append(
                f"{'-':>8} {'-':>7}" if "failed" in part else f"{part['p50_ms']:8.2f} {part['recall']:7.3f}"
            )
        for floor in FLOORS:
            rates = [point["per_second"] for point in entry["curve"] if point["recall"] >= floor]
            cells.append(f"{max(rates):7.0f}" if rates else f"{'-':>7}")
        cells.append(f"{change['add_ms']:7.0f} {change.get('delete_ms', float('nan')):7.0f}")
        lines.append(f"{entry['title']:24} " + " ".join(cells))
    return lines


def main() -> None:
    options = parser().parse_args()
    if options.quick:
        options.queries = 50
    run = Run(options)
    counts = [int(part) for part in options.only.split(",")] if options.only else list(GROWTH)
    sizes = [run.size(count) for count in ([10_000] if options.quick and not options.only else counts)]
    for size in sizes:
        print("\n".join(table(size)), end="\n\n")
    if out := result_file(options):
        facts = {
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe(),
            "threads": options.threads,
            "rounds": options.rounds,
            "sizes": sizes,
        }
        out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

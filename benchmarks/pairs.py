"""Pairs and search, ours and the peers in one run: the same vectors and threads, interleaved, best of several.

    python benchmarks/pairs.py                            everything
    python benchmarks/pairs.py --only pairs-50k,captions  some cases
    python benchmarks/pairs.py --quick                    does everything work? few rows, no results file

Every system runs in its own process; all but the one being measured are stopped. Timed: from vectors in memory to
the answer in memory. Vectors, indexes of peers and tensors are made before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pair_data
from comparison_flags import WORK, comparison, environments_of, result_file
from machine import describe
from pair_cases import LIMITS, SYSTEMS, Case, cases
from workers import Worker, attempt, say, surroundings


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "pairs.json", data="captions/, sts/", rounds=5)
    made.add_argument("--model", default="all-MiniLM-L6-v2", help="encodes the captions")
    made.add_argument("--only", help="cases, comma-separated")
    return made


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._environments = environments_of(options)
        self._folder = WORK / "work" / "pairs"
        self._folder.mkdir(parents=True, exist_ok=True)

    def case(self, case: Case) -> dict[str, Any]:
        """All systems of the case, in turns; new processes for each case, so that peaks of memory are its own."""
        arrays = self._arrays(case)
        if arrays is None:
            return {"title": case.title, "skipped": "the data is not here"}
        say(case.title)
        workers: dict[str, Worker] = {}
        actual: dict[str, dict[str, Any]] = {
            name: {"title": SYSTEMS[name].title, "seconds": []} for name in case.systems
        }
        try:
            for name in case.systems:
                attempt(
                    actual[name], lambda name=name: self._start(name, case, arrays, workers, actual[name])
                )
            for _ in range(1 if self._options.quick else min(self._options.rounds, case.rounds or 99)):
                for name in [name for name in case.systems if not actual[name].get("failed")]:
                    attempt(actual[name], lambda name=name: self._measure(case, workers[name], actual[name]))
        finally:
            for worker in workers.values():
                worker.close()
        return report(case, actual)

    def _arrays(self, case: Case) -> list[str] | None:
        if case.data == "captions":
            path = pair_data.captions(case.count, self._folder, self._options.data, self._options.model)
            return None if path is None else [str(path)]
        corpus = pair_data.clustered(case.count, self._folder)
        queries = [str(pair_data.clustered(case.queries, self._folder, seed=1))] if case.queries else []
        return [*queries, str(corpus)]

    def _start(
        self, name: str, case: Case, arrays: list[str], workers: dict[str, Worker], entry: dict[str, Any]
    ) -> None:
        system, threads = SYSTEMS[name], self._options.threads
        python = (
            Path(sys.executable)
            if system.environment is None
            else self._environments.python(system.environment)
        )
        log = self._folder / f"{name}.log"
        variables = surroundings(threads, ours=system.environment is None)
        workers[name] = Worker(name, python, "pairs_peer.py", variables, log)
        options = {"threads": threads, **system.options}
        entry["packages"] = workers[name].ask("load", system=system.kind, options=options)["packages"]
        ready = workers[name].ask("prepare", case=case.name, task=case.task, arrays=arrays, ask=case.ask)
        entry["before_mb"] = ready["before_mb"]

    def _measure(self, case: Case, worker: Worker, entry: dict[str, Any]) -> None:
        answer = worker.ask("run", case=case.name, timeout_s=3600)
        entry["seconds"].append(answer.pop("seconds"))
        entry["peak_mb"] = answer.pop("peak_mb")
        entry["answer"] = answer
        say(f"  {entry['title']:32} {entry['seconds'][-1]:8.2f} s")


def report(case: Case, actual: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Best times, how each compares, and whether the answers agree with ours."""
    ours = actual["gemel"].get("answer", {})
    for entry in actual.values():
        answer = entry.pop("answer", None)
        if not entry["seconds"]:
            continue
        entry["best"] = min(entry["seconds"])
        entry["above_vectors_mb"] = round(entry.pop("peak_mb") - entry.pop("before_mb"), 1)
        if answer and answer.get("scores") and ours.get("scores") and case.ask.get("k"):
            pairs = zip(answer["scores"], ours["scores"], strict=False)
            entry["largest_difference"] = max(abs(a - b) for a, b in pairs)
            entry["found"] = answer["found"]
        if answer and answer.get("index") and ours.get("index"):
            same = [
                len(set(a) & set(b)) / len(b) for a, b in zip(answer["index"], ours["index"], strict=True)
            ]
            entry["recall"] = sum(same) / len(same)
    times = {name: entry["best"] for name, entry in actual.items() if "best" in entry}
    result: dict[str, Any] = {"title": case.title, "vectors": case.count, "ask": case.ask, "systems": actual}
    for name in ("gemel", "gemel-float32"):
        if name in times:
            result[f"{name}_times_faster"] = {
                peer: round(times[peer] / times[name], 2) for peer in times if not peer.startswith("gemel")
            }
    limit = min((times[name] for name in LIMITS if name in times), default=None)
    if limit is not None and "gemel-float32" in times:
        result["part_of_sgemm_limit"] = {
            n: round(limit / times[n], 3) for n in ("gemel-float32", "gemel") if n in times
        }
    return result


def projection(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """A million vectors from 200,000: the work grows with the square, the memory does not grow."""
    entry = result and result.get("systems", {}).get("gemel", {})
    if not entry or "best" not in entry:
        return None
    factor = (1_000_000 / result["vectors"]) ** 2
    return {
        "vectors": 1_000_000,
        "projected_from": result["vectors"],
        "seconds": round(entry["best"] * factor),
        "above_vectors_mb": entry["above_vectors_mb"],
    }


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    wanted = options.only.split(",") if options.only else None
    available = cases(quick=options.quick)
    unknown = set(wanted or ()) - {case.name for case in available}
    if unknown:
        raise SystemExit(
            f"unknown case {sorted(unknown)[0]!r}. Known: {', '.join(case.name for case in available)}"
        )
    run = Run(options)
    machine = describe()
    results = {case.name: run.case(case) for case in available if not wanted or case.name in wanted}
    whole = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "threads": options.threads,
        "cases": results,
        "million": projection(results.get("pairs-200k")),
    }
    if out := result_file(options):
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    for result in results.values():
        shown = {key: value for key, value in result.items() if key.endswith(("faster", "limit", "skipped"))}
        print(result["title"], json.dumps(shown))


if __name__ == "__main__":
    main()

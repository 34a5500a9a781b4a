"""Communities above a threshold, ours and sentence-transformers' in one run, interleaved, best of several.

    python benchmarks/communities.py            20,000 and 50,000 vectors, threshold 0.6
    python benchmarks/communities.py --quick    does everything work? few rows, no results file

Timed: from vectors in memory to the communities in memory; ours also makes its figures of quality in that time. A
community of the peer is well defined when its rule finds it however ties are broken (tried in 20 ways): its ties go to
whatever comes first, so the others are one answer of several. Of the well-defined ones, those that we find are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import pair_data
from comparison_flags import WORK, comparison, environments_of, result_file
from environments import Environments, InstallError
from gemel.groups.grouping import neighbors_above
from gemel.groups.methods.communities import group_around_centers
from gemel.vectors.similarity import normalize
from machine import describe
from workers import Worker, WorkerError, say, surroundings

SYSTEMS = {"gemel": ("ours", None), "sentence-transformers": ("sentence-transformers", "pairs")}
WAYS = 20  # in which ties are broken


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "communities.json", rounds=3)
    add = made.add_argument
    add("--min-score", type=float, default=0.6)
    add("--min-size", type=int, default=10, help="the default of sentence-transformers")
    add("--counts", default="20000,50000", help="numbers of vectors, comma-separated")
    return made


def measure(
    count: int, options: argparse.Namespace, environments: Environments, folder: Path
) -> dict[str, Any]:
    """Both systems in turns; then the peer in other orders."""
    say(f"communities of {count:,}")
    array = str(pair_data.clustered(count, folder))
    ask = {"min_score": options.min_score, "min_size": options.min_size}
    workers, actual = {}, {}
    try:
        for name, (kind, environment) in SYSTEMS.items():
            python = Path(sys.executable) if environment is None else environments.python(environment)
            variables = surroundings(options.threads, ours=environment is None)
            worker = Worker(name, python, "communities_peer.py", variables, folder / f"{name}.log")
            workers[name] = worker
            ready = worker.ask("load", system=kind, threads=options.threads, array=array, ask=ask)
            actual[name] = {"seconds": [], **ready}
        for _ in range(options.rounds):
            for name, worker in workers.items():
                answer = worker.ask("run", ask=ask, timeout_s=3600)
                actual[name]["seconds"].append(answer.pop("seconds"))
                actual[name] |= answer
                say(
                    f"  {name:24} {actual[name]['seconds'][-1]:8.2f} s, {len(answer['groups']):,} communities"
                )
    finally:
        for worker in workers.values():
            worker.close()
    return report(count, ask, actual, always(array, ask))


def always(array: str, ask: dict[str, Any]) -> set[frozenset[int]]:
    """Communities that the rule finds in all ways to break ties."""
    rows = normalize(np.load(array))
    near = neighbors_above(rows, ask["min_score"])
    counts = np.ones(len(rows), dtype=np.int64)
    actual: list[set[frozenset[int]]] = []
    for seed in range(WAYS):
        ties = np.random.default_rng(seed).random(len(rows))
        labels, centers = group_around_centers(replace(near, nearness=ties), counts, ask["min_size"])
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(len(centers) + 1))
        actual.append({frozenset(order[a:b].tolist()) for a, b in pairwise(ends)})
    return set.intersection(*actual)


def report(
    count: int, ask: dict[str, Any], actual: dict[str, Any], certain: set[frozenset[int]]
) -> dict[str, Any]:
    """Times, and how many of the peer's communities are ours."""
    groups = {name: {frozenset(group) for group in entry.pop("groups")} for name, entry in actual.items()}
    ours, theirs = groups["gemel"], groups["sentence-transformers"]
    defined = theirs & certain
    for entry in actual.values():
        entry["best"] = min(entry["seconds"])
        entry["above_vectors_mb"] = round(entry.pop("peak_mb") - entry.pop("before_mb"), 1)
    return {
        "vectors": count,
        "ask": ask,
        "systems": actual,
        "times_faster": round(actual["sentence-transformers"]["best"] / actual["gemel"]["best"], 2),
        "communities": {name: len(sets) for name, sets in groups.items()},
        "same": len(ours & theirs),
        "well_defined": len(defined),
        "well_defined_found": len(defined & ours),
    }


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    counts = [int(count) for count in options.counts.split(",")]
    if options.quick:
        counts, options.rounds = [1000], 1
    environments = environments_of(options)
    folder = WORK / "work" / "pairs"
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe()
    try:
        results = [measure(count, options, environments, folder) for count in counts]
    except (InstallError, WorkerError) as error:
        raise SystemExit(f"communities: {error}") from error
    made = datetime.now(UTC).isoformat(timespec="seconds")
    whole = {"made": made, "machine": machine, "threads": options.threads, "results": results}
    if out := result_file(options):
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    for result in results:
        print(json.dumps({key: value for key, value in result.items() if key != "systems"}))


if __name__ == "__main__":
    main()

"""Ours and the peers in one run: the same weights, texts and threads, interleaved, best of 5.

    python benchmarks/encode.py                              everything, about a quarter of an hour
    python benchmarks/encode.py --only gemel,st-torch,ct2    some systems
    python benchmarks/encode.py --quick                      does everything work? few texts, no results file

See README.md beside this file for what is timed and how each peer is set up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from environments import Environments
from machine import describe
from run import Run, Settings
from systems import choose
from table import render
from texts import SETS
from workers import say

HERE = Path(__file__).parent
PARTS = ("encode", "latency", "start", "size")


def names(known: tuple[str, ...] | None = None):  # noqa: ANN201 - a parser for argparse
    """Comma-separated names, all of them known."""

    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in found if known and name not in known]
        if unknown or not found:
            raise argparse.ArgumentTypeError(f"unknown {unknown[:1]}. Known: {', '.join(known or ())}")
        return found

    return parse


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add(
        "--data",
        type=Path,
        default=HERE.parent.parent / "shared" / "data",
        help="folder with sts/, clustering/",
    )
    add("--model", default="all-MiniLM-L6-v2", help="a name that gemel knows, or a folder")
    add("--only", type=names(), help="systems, comma-separated; the start of a name takes the whole family")
    add("--sets", type=names(SETS), default=list(SETS), help=f"sets of texts: {', '.join(SETS)}")
    add("--parts", type=names(PARTS), default=list(PARTS), help=f"what to measure: {', '.join(PARTS)}")
    add("--rounds", type=int, default=5, help="measurements of each system and set; the best counts")
    add("--minutes", type=float, default=14.0,
        help="stop adding rounds of the two larger sets when this is reached; 0: no limit")  # fmt: skip
    add("--threads", type=int, default=2)
    add("--documents", type=int, default=250, help="long documents")
    add(
        "--environments",
        type=Path,
        help="use the virtual environments in this folder, change nothing in them",
    )
    add("--quick", action="store_true", help="few texts, two rounds")
    add("--million", action="store_true", help="also benchmarks/memory.py: a million sentences to disk")
    add("--count", type=int, default=1_000_000, help="sentences for --million")
    add("--out", type=Path, help="where the results go; default results/encode.json, nowhere with --quick")
    return made


def settings_from(options: argparse.Namespace) -> Settings:
    work = HERE / ".environments"
    return Settings(
        model=options.model,
        data=options.data,
        systems=choose(options.only),
        sets=[name for name in SETS if name in options.sets],
        parts=options.parts,
        rounds=min(options.rounds, 2) if options.quick else options.rounds,
        end=time.monotonic() + options.minutes * 60 if options.minutes else float("inf"),
        threads=options.threads,
        documents=options.documents,
        environments=Environments(options.environments or work, install=options.environments is None),
        work=work / "work",
        quick=options.quick,
        million=options.count if options.million else None,
    )


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        settings = settings_from(options)
    except ValueError as error:
        print(f"encode: {error}", file=sys.stderr)
        return 2
    if hasattr(os, "sched_setaffinity"):  # a wider machine gives no peer more cores than asked for
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    before = time.monotonic()
    results = {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "threads": options.threads,
        "machine": describe(),
        **Run(settings).measure(),
    }
    results["minutes"] = round((time.monotonic() - before) / 60, 1)
    out = options.out or (None if options.quick else HERE / "results" / "encode.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        say(f"wrote {out}")
    print(render(results))
    ours = [entry for entry in results["systems"].values() if entry["role"] == "ours"]
    return 1 if any(entry["failed"] for entry in ours) else 0  # a peer's failure is a line of the report


if __name__ == "__main__":
    sys.exit(main())

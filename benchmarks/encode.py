"""Ours and the peers in one run: the same weights, texts and threads, interleaved, best of 5.

    python benchmarks/encode.py                              everything, about a quarter of an hour
    python benchmarks/encode.py --only gemel,st-torch,ct2    some systems
    python benchmarks/encode.py --quick                      does everything work? few texts, no results file
    python benchmarks/encode.py --shape qwen3-0.6b --only gemel,st-torch --sets stsb-test,long --parts encode \
        --texts 128 --documents 16 --rounds 3 --out benchmarks/results/encode-qwen3-0.6b.json      a decoder
    python benchmarks/encode.py --shape bert-base --levels --sets stsb-test,long --parts encode --texts 256 \
        --documents 16 --rounds 3 --out benchmarks/results/encode-bert-base.json      768 dimensions, all levels

See README.md next to this file for what is timed and how each peer is set up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime

from comparison_flags import WORK, comparison, environments_of, result_file
from gemel.encoder.engines import native
from machine import describe
from random_model import SHAPES, random_model
from run import Run, Settings, find_model
from systems import choose, level_systems
from table import render
from texts import SETS
from workers import say

PARTS = ("encode", "latency", "start", "size")


def names(allowed: tuple[str, ...] | None = None):  # noqa: ANN201 - a parser for argparse
    """Comma-separated names, all of which must be allowed."""

    def parse(text: str) -> list[str]:
        result = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in result if allowed and name not in allowed]
        if unknown or not result:
            raise argparse.ArgumentTypeError(f"unknown {unknown[:1]}. Known: {', '.join(allowed or ())}")
        return result

    return parse


def parser() -> argparse.ArgumentParser:
    made = comparison(__doc__, "encode.json", data="sts/, clustering/", rounds=5)
    add = made.add_argument
    add("--model", default="all-MiniLM-L6-v2", help="a name that gemel knows, or a folder")
    add("--shape", choices=sorted(SHAPES), help="random weights of this shape instead of a model")
    add("--texts", type=int, help="at most so many sentences of each set (default: all)")
    add("--only", type=names(), help="systems, comma-separated; the start of a name takes the whole family")
    add("--sets", type=names(SETS), default=list(SETS), help=f"sets of texts: {', '.join(SETS)}")
    add("--parts", type=names(PARTS), default=list(PARTS), help=f"what to measure: {', '.join(PARTS)}")
    add("--minutes", type=float, default=14.0,
        help="stop adding rounds of the two larger sets when this is reached; 0: no limit")  # fmt: skip
    add(
        "--levels",
        action="store_true",
        help="also gemel on the lower processor levels that this machine runs",
    )
    add("--documents", type=int, default=250, help="long documents")
    add("--million", action="store_true", help="also benchmarks/memory.py: a million sentences to disk")
    add("--count", type=int, default=1_000_000, help="sentences for --million")
    return made


def settings_from(options: argparse.Namespace) -> Settings:
    return Settings(
        model=model_of(options),
        data=options.data,
        systems=choose(options.only) + (level_systems(native.levels()) if options.levels else []),
        sets=[name for name in SETS if name in options.sets],
        parts=options.parts,
        rounds=min(options.rounds, 2) if options.quick else options.rounds,
        end=time.monotonic() + options.minutes * 60 if options.minutes else float("inf"),
        threads=options.threads,
        documents=options.documents,
        environments=environments_of(options),
        work=WORK / "work",
        quick=options.quick,
        million=options.count if options.million else None,
        texts=options.texts,
    )


def model_of(options: argparse.Namespace) -> str:
    """The model to measure: a name, or the folder of a random one."""
    if options.shape is None:
        return str(options.model)
    tokenizer = find_model("all-MiniLM-L6-v2") / "tokenizer.json"
    return str(random_model(options.shape, WORK / "work" / options.shape, tokenizer))


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        settings = settings_from(options)
    except ValueError as error:
        print(f"encode: {error}", file=sys.stderr)
        return 2
    if hasattr(os, "sched_setaffinity"):  # a larger machine gives no peer more cores than requested
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    before = time.monotonic()
    results = {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "threads": options.threads,
        "model": f"random weights of the shape {options.shape}" if options.shape else options.model,
        "machine": describe(),
        **Run(settings).measure(),
    }
    results["minutes"] = round((time.monotonic() - before) / 60, 1)
    if out := result_file(options):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        say(f"wrote {out}")
    print(render(results))
    ours = [entry for entry in results["systems"].values() if entry["role"] == "ours"]
    return 1 if any(entry["failed"] for entry in ours) else 0  # the failure of a peer is a line of the report


if __name__ == "__main__":
    sys.exit(main())

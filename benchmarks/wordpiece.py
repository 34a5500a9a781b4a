"""The compiled WordPiece compared with the tokenizers library: the same ids, texts per second.

    python benchmarks/wordpiece.py             a minute; writes results/wordpiece.json
    python benchmarks/wordpiece.py --quick     does it work? few texts, no results file

English sentences, long English documents, and German sentences, of which those with other letters than ASCII's are left
to the library. The library uses all cores, the compiled code one. In turns, best of several rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import gemel
from comparison_flags import comparison, result_file
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.encoder.tokenizer import TextTokenizer
from gemel.encoder.wordpiece import ascii_wordpiece
from machine import describe
from texts import distinct, read_tsv

MODEL = "all-MiniLM-L6-v2"
SETS = {
    "English sentences": ("sts/stsb-train", ("sentence1", "sentence2"), 10_000),
    "English documents": ("clustering/20newsgroups", ("text",), 2_000),
    "German sentences": ("multilingual/stsb-de-train", ("sentence1", "sentence2"), 10_000),
}
"""File, columns, texts."""


def measure(tokenizer: TextTokenizer, texts: list[str], rounds: int) -> dict[str, Any]:
    """Seconds of both in every round, and whether the ids are the same."""
    sides = {"library": tokenizer.library_content, "compiled": tokenizer.content}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    ids = {}
    for _ in range(rounds):
        for name, side in sides.items():
            begin = perf_counter()
            ids[name] = side(texts)
            seconds[name].append(round(perf_counter() - begin, 5))
    same = [one.tolist() for one in ids["library"]] == [one.tolist() for one in ids["compiled"]]
    rates = {name: round(len(texts) / min(values)) for name, values in seconds.items()}
    ratio = round(rates["compiled"] / rates["library"], 1)
    return {
        "texts": len(texts),
        "seconds": seconds,
        "texts_per_second": rates,
        "ratio": ratio,
        "same_ids": same,
    }


def main() -> int:
    options = comparison(
        __doc__, "wordpiece.json", data="sts/, clustering/, multilingual/", rounds=7
    ).parse_args()
    opened = load_tokenizer(gemel.load(MODEL).checkpoint)
    begin = perf_counter()
    fast = ascii_wordpiece(opened)
    content: dict[str, Any] = {
        "machine": describe(),
        "model": MODEL,
        "build_seconds": round(perf_counter() - begin, 3),
    }
    if fast is None:
        print("nothing was compiled at install", file=sys.stderr)
        return 1
    content["sets"] = {}
    for name, (file, columns, count) in SETS.items():
        rows = read_tsv(Path(options.data) / f"{file}.tsv.gz")
        texts = distinct([row[column] for row in rows for column in columns])[
            : 600 if options.quick else count
        ]
        content["sets"][name] = result = measure(
            TextTokenizer(opened), texts, 2 if options.quick else options.rounds
        )
        result["left_to_the_library"] = sum(ids is None for ids in fast.content(texts))
        print(
            f"{name}: {result['texts_per_second']}, x {result['ratio']}, the same ids: {result['same_ids']}"
        )
    if path := result_file(options):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(each["same_ids"] for each in content["sets"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())

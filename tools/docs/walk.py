"""Write the walk of one sentence into ARCHITECTURE.md, with the numbers of the real model.

Not part of `generate.py`, because it needs the default model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemel.encoder.batches import same_length_batches
from gemel.encoder.pooling import pool
from gemel.model import load
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.search import search
from gemel.vectors.similarity import normalize

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
TEXTS = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell today.",
    "A child is reading a book.",
]


def walk(name: str) -> str:
    """A markdown table: where, what happens, output."""
    model = load(name)
    first = TEXTS[0]
    parts = model.tokens(TEXTS)
    lengths = [len(part.tokens) for part in parts]
    batches = [batch.tolist() for batch in same_length_batches(lengths, lambda _: 32)]
    hidden = parts[0].vectors[None]  # (1, t, width)
    pooled = pool(hidden, model.checkpoint.pooling.modes)
    vectors = model.encode(TEXTS)
    hits = search(vectors[:1], vectors[1:], k=3)
    pairs = similar_pairs(vectors, k=1)
    assert np.array_equal(normalize(pooled)[0], vectors[0])
    assert np.array_equal(model.encode([first])[0], vectors[0])
    result = " · ".join(
        f"{score:.3f} “{TEXTS[index + 1]}”" for index, score in zip(hits.index[0], hits.score[0], strict=True)
    )
    rows = [
        ("`cli/verbs/encode.py` or your program", "a line of a file becomes a string", "`str`"),
        (
            "`model.py: Model.encode`",
            "a list of texts; equal ones are encoded once, the caller's order is restored at the end",
            "`list[str]`",
        ),
        (
            "`encoder/tokenizer.py`",
            "lower-case, split, WordPiece: ids of the words",
            f"{_words(parts[0].tokens)}",
        ),
        (
            "`encoder/tokenizer.py: cut`",
            f"special tokens are added; at most {model.max_length} tokens count, the rest is cut or read in windows",
            f"{lengths[0]} tokens",
        ),
        (
            "`encoder/batches.py`",
            f"four texts of {_list(lengths)} tokens: equal lengths share a batch, longest first, no padding",
            f"positions `{batches}`",
        ),
        (
            f"`encoder/engines/{model.engine_name}.py: hidden`",
            "the network: attention and feed-forward, block after block",
            f"hidden `(b, {hidden.shape[1]}, {hidden.shape[2]})` float32",
        ),
        (
            f"`encoder/pooling.py: {model.checkpoint.pooling.modes[0]}`",
            "the tokens of a text become one vector",
            f"`(b, {pooled.shape[1]})`, this one starts {_numbers(pooled[0])}",
        ),
        (
            "`encoder/head.py: finish`",
            "dense layers if there are any, fewer dimensions if requested, length 1",
            f"starts {_numbers(vectors[0])}",
        ),
        ("`model.py`", "rows back in the caller's order", f"`{vectors.shape}` {vectors.dtype}"),
        ("`vectors/search.py: search`", "the other three, nearest first", result),
        (
            "`vectors/pairs.py: similar_pairs`",
            f"the nearest of {pairs.compared} pairs",
            f"{pairs.score[0]:.3f}: {pairs.left[0]} and {pairs.right[0]}",
        ),
        (
            "`texts/encode_folder.py`",
            "or: vectors and ids to disk, with a fingerprint of all that the vector depends on",
            f"`{model.fingerprint.digest}`",
        ),
    ]
    lines = [
        f"“{first}” through {name}. The numbers are written by `tools/docs/walk.py`.",
        "",
        "| # | where | what happens | output |",
        "|---|---|---|---|",
        *(f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, start=1)),
        "",
        "Checked: the sentence has the same bits alone and among the others.",
    ]
    return "\n".join(lines)


def _words(tokens: Sequence[str]) -> str:
    return "`" + " ".join(tokens[1:-1]) + "`"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _numbers(vector: Sequence[float]) -> str:
    return "`" + " ".join(f"{number:.4f}" for number in vector[:4]) + "`"


def main(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    block = f"<!-- walk -->\n{walk(name)}\n<!-- /walk -->"
    written = re.sub(r"<!-- walk -->.*<!-- /walk -->", lambda _: block, page, flags=re.DOTALL)
    PAGE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "all-MiniLM-L6-v2")

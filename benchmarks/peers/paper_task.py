"""The most similar pair of many sentences, from text: `gemel` or `st` and a file of sentences as arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any


def with_gemel(model: str, texts: list[str], threads: int) -> dict[str, Any]:
    import gemel

    encoder = gemel.load(model)
    started = perf_counter()
    vectors = encoder.encode(texts, threads=threads)
    encoded = perf_counter()
    pairs = gemel.similar_pairs(vectors, k=1, threads=threads)
    ended = perf_counter()
    best = sorted([int(pairs.left[0]), int(pairs.right[0])])
    return {
        "encode": encoded - started,
        "pairs": ended - encoded,
        "best": best,
        "score": float(pairs.score[0]),
    }


def with_st(model: str, texts: list[str], threads: int) -> dict[str, Any]:
    import torch
    from sentence_transformers import SentenceTransformer, util

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu")
    started = perf_counter()
    vectors = encoder.encode(texts, convert_to_tensor=True)
    encoded = perf_counter()
    score, left, right = util.paraphrase_mining_embeddings(vectors, max_pairs=1)[0]
    ended = perf_counter()
    return {
        "encode": encoded - started,
        "pairs": ended - encoded,
        "best": sorted([int(left), int(right)]),
        "score": float(score),
    }


if __name__ == "__main__":
    system, model, file, threads = sys.argv[1:]
    sentences = Path(file).read_text(encoding="utf-8").splitlines()
    run = {"gemel": with_gemel, "st": with_st}[system]
    print(json.dumps(run(model, sentences, int(threads))))

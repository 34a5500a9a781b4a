"""Arrays of any shape, type and content for search, pairs and quantization: the native scan against plain numpy."""

from __future__ import annotations

from pathlib import Path

from fuzz.target import Job, WrongAnswerError, target

DTYPES = ("<f4", "<f8", "<f2", "<i4", "|u1", "<i8", "|b1", "<c8")
METRICS = ("cosine", "dot", "euclidean", "manhattan")


@target(
    "arrays",
    "bytes",
    "gemel.vectors.similarity",
    "gemel.vectors.search",
    "gemel.vectors.pairs",
    "gemel.vectors.scan.compare",
)
def arrays(folder: Path) -> Job:
    """Six bytes say type, metric, dimension, rows, k and options; the rest are the numbers."""
    import numpy as np

    import gemel

    def run(data: bytes) -> None:
        head = [*data[:6], 0, 0, 0, 0, 0, 0]
        kind, metric, dim = DTYPES[head[0] % 8], METRICS[head[1] % 4], head[2] % 80
        body = np.frombuffer(data[6:].ljust(16, b"\x01")[: (len(data) - 6) // 16 * 16 or 16], dtype=kind)
        rows = np.resize(body, (1 + head[3] % 90, dim)) if dim else body
        k = head[4] - 1
        result = gemel.search(rows[:3], rows, k, metric=metric, threads=1)
        if result.score.shape != result.index.shape or len(result.score) != len(rows[:3]):
            raise WrongAnswerError(f"{result.score.shape} scores, {result.index.shape} positions")
        fast, plain = (
            gemel.similar_pairs(rows, k=max(1, k), metric=metric, threads=1, prune=prune)
            for prune in (True, False)
        )
        for name in ("score", "left", "right"):
            if not np.array_equal(getattr(fast, name), getattr(plain, name)):
                raise WrongAnswerError(f"{name} of the pairs depends on how they are computed")
        for output in ("float16", "int8", "binary"):
            gemel.quantize(rows, output)

    numbers = np.random.default_rng(0).normal(size=200)
    seeds = [
        bytes([kind, metric, dim, 20, 5, 0]) + numbers.astype(DTYPES[kind]).tobytes()
        for kind, metric, dim in ((0, 0, 8), (0, 1, 33), (1, 2, 5), (2, 3, 16), (3, 0, 3), (4, 1, 7))
    ]
    return Job(seeds, run)

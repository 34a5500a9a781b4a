"""Pairs through an index: each row's proposed neighbours get exact scores; what was missed is measured on a sample."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.pairs.collect import Best, in_order, places
from gemel.pairs.request import BYTES_A_PAIR, Request
from gemel.pairs.result import Pairs
from gemel.scan.compare import Comparison, Side
from gemel.scan.found import Found
from gemel.scan.scanner import scan
from gemel.types import Vectors

_BLOCK = 4096
_STREAM = 2048  # right rows that a scanner looks at before it hands over what it found
_SAMPLE = 512  # rows whose pairs are compared exactly to measure the recall
_LEAST = 16  # of them at a time, however little memory there is
_A_CELL = 39  # rows that the index wants to learn a cell from
_PROBES = 16


def approximate_pairs(left: Vectors, right: Vectors | None, request: Request, neighbours: int) -> Pairs:
    """Pairs whose one row is among the `neighbours` that the index proposes for the other."""
    _check(request, neighbours, len(left))
    ready = scan(left, right, request.metric, threads=request.threads, int8=False, names=("vectors", "other"))
    comparison = ready.comparison
    proposed = _proposed(comparison, request, neighbours)
    width = len(comparison.right)
    i, j = np.divmod(proposed, max(width, 1))
    score = ready.scanner.exact(i, j, request.threads)
    good = score >= np.float32(request.floor)
    found = Found(score[good], i[good].astype(np.int32), j[good].astype(np.int32))
    if request.k is not None:
        best = Best(request.k, request.floor, width, kept=found)
        found = best.found()
    found = in_order(found, width)
    return Pairs(
        found.score,
        found.left.astype(np.int64),
        found.right.astype(np.int64),
        compared=len(proposed),
        complete=False,
        recall=_recall(left, right, request, found),
    )


def _check(request: Request, neighbours: int, rows: int) -> None:
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
        raise InputError(f"approximate is a number of neighbours, at least 1, got {neighbours!r}")
    if request.metric == "manhattan":
        raise InputError("no index knows the manhattan metric; leave approximate away, or take euclidean")
    if request.out is not None:
        raise InputError("an approximate answer fits in memory: give either approximate or out")
    if rows * neighbours * BYTES_A_PAIR > request.memory:
        raise InputError(
            f"{neighbours} neighbours of {rows:,} rows do not fit in memory={request.memory:,} bytes. "
            "Take fewer neighbours, or give more memory"
        )


def _proposed(comparison: Comparison, request: Request, neighbours: int) -> NDArray[np.int64]:
    """Places (left * width + right) of the pairs, each once."""
    if not len(comparison.left) or not len(comparison.right):
        return np.empty(0, dtype=np.int64)
    width, same = len(comparison.right), comparison.same
    index = _index(comparison.right, comparison.kind, request.threads)
    parts = []
    for start in range(0, len(comparison.left), _BLOCK):
        rows = comparison.left.scaled(start, start + _BLOCK)
        found = np.asarray(index.search(rows, neighbours + same)[1], dtype=np.int64)  # a row finds itself
        query, place = np.nonzero(found >= 0)
        i, j = query + start, found[query, place]
        if same:
            other = i != j
            i, j = np.minimum(i, j)[other], np.maximum(i, j)[other]
        parts.append(np.unique(i * width + j))
    return np.unique(np.concatenate(parts))


def _index(side: Side, kind: str, threads: int) -> Any:  # noqa: ANN401 - faiss has no types
    """An inverted file: rows in cells by their nearest centre, some cells looked at for each question."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("approximate pairs", "faiss-cpu", "ann") from error
    count = len(side)
    cells = max(1, min(int(4 * sqrt(count)), count // _A_CELL))
    faiss.omp_set_num_threads(threads)
    metric = faiss.METRIC_L2 if kind == "euclidean" else faiss.METRIC_INNER_PRODUCT
    index: Any = faiss.index_factory(side.rows.shape[1], f"IVF{cells},Flat", metric)
    index.cp.seed = 0
    index.train(_some(side, np.sort(np.random.default_rng(0).permutation(count)[: 64 * cells])))
    for start in range(0, count, _BLOCK):
        index.add(side.scaled(start, start + _BLOCK))
    index.nprobe = min(_PROBES, cells)
    return index


def _some(side: Side, positions: NDArray[np.int64]) -> Vectors:
    """Those rows, scaled; block by block, because scaling goes through float64."""
    chosen = replace(side, chosen=positions)
    out = np.empty((len(positions), side.rows.shape[1]), dtype=np.float32)
    for start in range(0, len(out), _BLOCK):
        out[start : start + _BLOCK] = chosen.scaled(start, start + _BLOCK)
    return out


class _Tally:
    """Counts right pairs as they are found, and those of them that the answer has; keeps none.

    One outlier among the pairs found makes nearly all pairs of the sample right ones: they need not fit into memory.
    """

    def __init__(
        self, sample: NDArray[np.int64], known: NDArray[np.int64], width: int, *, same: bool
    ) -> None:
        """`sample`: the left row of each row that is scanned. `known`: the places of the answer, ascending."""
        self._sample, self._known, self._width, self._same = sample, known, width, same
        self._sampled = np.zeros(width if same else 0, dtype=bool)
        if same:
            self._sampled[sample] = True
        self.right = self.found = 0

    def add(self, found: Found) -> None:
        i, j = self._sample[found.left], found.right.astype(np.int64)
        if self._same:
            # No row with itself; a pair of two sampled rows is found from both ends and counts from the lower one.
            once = (i < j) | ((i > j) & ~self._sampled[j])
            i, j = np.minimum(i, j)[once], np.maximum(i, j)[once]
        place = i * self._width + j
        at = np.minimum(np.searchsorted(self._known, place), len(self._known) - 1)
        self.right += len(place)
        self.found += int((self._known[at] == place).sum())


def _recall(left: Vectors, right: Vectors | None, request: Request, found: Found) -> float | None:
    """The part of all pairs as good as the worst found that is in `found`, for some left rows; None where none is."""
    if not len(found):
        return None
    sample = np.sort(np.random.default_rng(0).permutation(len(left))[:_SAMPLE])
    ready = scan(
        left[sample],
        left if right is None else right,
        request.metric,
        threads=request.threads,
        int8=request.prune,
        names=("vectors", "other"),
    )
    width, worst = len(ready.comparison.right), float(found.score.min())
    tally = _Tally(sample, np.sort(places(found, width)), width, same=right is None)
    rows = max(_LEAST, request.most_pairs // _STREAM)  # all pairs of a step may be right ones
    for start in range(0, len(sample), rows):
        block = ready.scanner.block(start, min(start + rows, len(sample)))
        ready.scanner.pairs(block, 0, width, lambda: worst, tally.add)
    return tally.found / tally.right if tally.right else None

"""Numbers for ranked lists: nDCG, average precision, reciprocal rank, recall, precision, one value a query.

Pure functions on `Ranked`. The definitions are those of trec_eval: gains count as they stand (not 2^gain - 1), a place
counts 1 / log2(place + 1), and the average precision is divided by all relevant documents, found or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranked lists by what is at each place, and the best list that was possible."""

    gains: Floats
    """(q, depth): the gain of the document at each place; 0 where it is not relevant or the place is empty."""
    ideal: Floats
    """(q, most): the gains of all relevant documents of a query, best first, then zeros."""

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def relevant(self) -> Floats:
        """(q,) relevant documents of each query, found or not."""
        return np.asarray((self.ideal > 0).sum(axis=1), dtype=np.float64)


def ranked(index: NDArray[np.int64], gains: Sequence[Mapping[int, float]]) -> Ranked:
    """`index` (q, depth) holds positions in a corpus, -1 for an empty place; `gains` the gain of each position.

    A gain of 0 or less is "not relevant". A query without a relevant document has no numbers, so it is refused.
    """
    if len(index) != len(gains):
        raise InputError(
            f"{len(index)} ranked lists but relevance for {len(gains)} queries; give one for each"
        )
    positive = [{place: gain for place, gain in known.items() if gain > 0} for known in gains]
    empty = next((query for query, known in enumerate(positive) if not known), None)
    if empty is not None:
        raise InputError(f"query {empty} has no relevant document; leave it out before ranking")
    ideal = np.zeros((len(gains), max(map(len, positive), default=0)))
    found = np.zeros(index.shape)
    for row, known in enumerate(positive):
        ideal[row, : len(known)] = sorted(known.values(), reverse=True)
        for place in np.flatnonzero(np.isin(index[row], list(known))):
            found[row, place] = known[int(index[row, place])]
    return Ranked(found, ideal)


def ndcg(lists: Ranked, k: int) -> Floats:
    """The discounted gain of the first `k` places over that of the best order."""
    return _discounted(lists.gains, k) / _discounted(lists.ideal, k)


def average_precision(lists: Ranked, k: int | None = None) -> Floats:
    """The mean over the relevant documents of the precision where each was found; 0 for one not among the first `k`."""
    hit = lists.gains[:, :k] > 0
    precisions = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    return np.asarray((precisions * hit).sum(axis=1) / lists.relevant)


def reciprocal_rank(lists: Ranked, k: int | None = None) -> Floats:
    """1 / the place of the first relevant document; 0 where there is none among the first `k`."""
    hit = lists.gains[:, :k] > 0
    if hit.shape[1] == 0:
        return np.zeros(len(hit))
    return np.where(hit.any(axis=1), 1 / (hit.argmax(axis=1) + 1), 0.0)


def recall(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, of all that there are."""
    return _hits(lists, k) / lists.relevant


def precision(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, of k: also where the corpus or the list is shorter."""
    return _hits(lists, k) / k


def hit_rate(lists: Ranked, k: int) -> Floats:
    """1 where any relevant document is among the first `k`."""
    return np.asarray(_hits(lists, k) > 0, dtype=np.float64)


def _hits(lists: Ranked, k: int) -> Floats:
    return np.asarray((lists.gains[:, :k] > 0).sum(axis=1), dtype=np.float64)


def _discounted(gains: Floats, k: int) -> Floats:
    kept = gains[:, :k]
    return np.asarray((kept / np.log2(np.arange(2, kept.shape[1] + 2))).sum(axis=1))

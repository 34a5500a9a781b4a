"""Reciprocal rank fusion: several rankings of one corpus become one, by places alone. Scores need not be comparable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemel.errors import InputError
from gemel.nearest import Hits

STEADY = 60  # the larger, the less the first places stand out; the value of the method's authors


def fuse(rankings: Sequence[Hits], k: int, *, steady: int = STEADY) -> Hits:
    """The best `k` by the sum of 1 / (steady + place) over the rankings, places from 1; ties go to the lower position.

    Places of -1 (nothing found) do not count; a query with fewer than k found documents ends in -1 too.
    """
    if not rankings or len({len(each) for each in rankings}) != 1:
        raise InputError("fuse takes rankings of the same queries, at least one")
    index = np.full((len(rankings[0]), k), -1, dtype=np.int64)
    score = np.zeros(index.shape, dtype=np.float32)
    for row in range(len(index)):
        found = np.concatenate([each.index[row] for each in rankings])
        gain = np.concatenate([1 / (steady + 1 + np.arange(each.index.shape[1])) for each in rankings])
        documents, places = np.unique(found[found >= 0], return_inverse=True)
        total = np.bincount(places, weights=gain[found >= 0], minlength=len(documents))
        best = np.lexsort((documents, -total))[:k]
        index[row, : len(best)] = documents[best]
        score[row, : len(best)] = total[best]
    return Hits(index, score)

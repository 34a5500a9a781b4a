"""Near texts that say the opposite are no duplicates: a model that keeps its relation head can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gemel.model import Model
from gemel.near_duplicates.result import Spared
from gemel.pairs import Pairs
from gemel.types import AnyVectors

LIMIT = 0.5
_BLOCK = 65_536  # pairs looked at at once


def without_contradictions(
    pairs: Pairs, vectors: AnyVectors, model: Model | None, positions: NDArray[np.int64]
) -> tuple[Pairs, tuple[Spared, ...]]:
    """The pairs that do not contradict, and those that do by `positions`.

    A head reads pairs in one direction; one in which it sees a contradiction is enough, as removing loses more.
    """
    labels = None if model is None else model.labels
    place = next(
        (at for at, label in enumerate(labels or ()) if label.lower().startswith("contradict")), None
    )
    if model is None or place is None or not len(pairs):
        return pairs, ()
    probability = np.empty(len(pairs), dtype=np.float32)
    for begin in range(0, len(pairs), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        left, right = vectors[pairs.left[part]], vectors[pairs.right[part]]
        both = (model.relation_of(left, right)[:, place], model.relation_of(right, left)[:, place])
        probability[part] = np.maximum(*both)
    against = probability > LIMIT
    order = np.flatnonzero(against)
    order = order[np.argsort(-pairs.score[order], kind="stable")]
    spared = tuple(
        Spared(
            int(positions[pairs.left[at]]),
            int(positions[pairs.right[at]]),
            float(pairs.score[at]),
            float(probability[at]),
        )
        for at in order.tolist()
    )
    rest = ~against
    return replace(pairs, score=pairs.score[rest], left=pairs.left[rest], right=pairs.right[rest]), spared

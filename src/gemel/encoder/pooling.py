"""Token vectors -> one vector per text.

A pooling is a pure function of hidden states, (b, t, d) -> (b, d). All texts of a call have t tokens, so there is no
mask. One law holds for all of them and is tested for every registered name: rows do not see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.registry import Registry
from gemel.types import Vectors

PoolingFunction: TypeAlias = Callable[[Vectors], Vectors]

POOLINGS: Registry[PoolingFunction] = Registry("pooling")


def _total(hidden: Vectors) -> Vectors:
    """The sum over tokens, added one token after the other whatever the batch is."""
    total = hidden[:, 0].copy()
    for place in range(1, hidden.shape[1]):
        total += hidden[:, place]
    return total


@POOLINGS.add("mean")
def mean(hidden: Vectors) -> Vectors:
    """The average token, the paper's default."""
    return _total(hidden) / np.float32(hidden.shape[1])


@POOLINGS.add("cls")
def cls(hidden: Vectors) -> Vectors:
    """The first token, a mark that BERT puts before every text."""
    return hidden[:, 0].copy()


@POOLINGS.add("max")
def largest(hidden: Vectors) -> Vectors:
    """The largest number of each dimension."""
    return np.asarray(hidden.max(axis=1))


@POOLINGS.add("mean-sqrt-len")
def mean_sqrt_len(hidden: Vectors) -> Vectors:
    """The sum divided by the square root of the length."""
    return _total(hidden) / np.float32(np.sqrt(hidden.shape[1]))


@POOLINGS.add("weighted-mean")
def weighted_mean(hidden: Vectors) -> Vectors:
    """The average with weights 1, 2, ..., t: later tokens have seen more (decoders)."""
    return _weighted_mean(hidden, 1)


def _weighted_mean(hidden: Vectors, first: int) -> Vectors:
    weights = np.arange(first, first + hidden.shape[1], dtype=np.float32)
    return np.asarray(_total(hidden * weights[:, None]) / weights.sum())


@POOLINGS.add("last")
def last(hidden: Vectors) -> Vectors:
    """The last token."""
    return hidden[:, -1].copy()


def pool(hidden: Vectors, modes: tuple[str, ...], skip: int = 0) -> Vectors:
    """All `modes` side by side, (b, modes * d). The first `skip` tokens do not count: a prompt left out."""
    counted = hidden[:, min(skip, hidden.shape[1]) :]
    if counted.shape[1] == 0:
        return np.zeros((len(hidden), len(modes) * hidden.shape[2]), dtype=np.float32)
    # A token's weight is its place in the text, prompt included, also where the prompt does not count.
    parts = [
        _weighted_mean(counted, skip + 1) if mode == "weighted-mean" else POOLINGS[mode](counted)
        for mode in modes
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def pool_each(hidden: Vectors, modes: tuple[str, ...], skips: NDArray[np.int64]) -> Vectors:
    """`pool`, where each row leaves out its own number of tokens."""
    if (skips == skips[0]).all():
        return pool(hidden, modes, int(skips[0]))
    out = np.empty((len(hidden), len(modes) * hidden.shape[2]), dtype=np.float32)
    for skip in np.unique(skips):
        rows = skips == skip
        out[rows] = pool(hidden[rows], modes, int(skip))
    return out

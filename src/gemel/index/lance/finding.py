"""The nearest passages in one sight of a table: candidates from lists or from all, then exact scores and order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.lance.lists import Lists
from gemel.index.lance.sight import Sight
from gemel.index.port import Passages
from gemel.index.where import Condition
from gemel.scan.exact import exact_scores
from gemel.types import Vectors

Slots = NDArray[np.int64]

_AT_ONCE = 1 << 24  # scores that are held at once: 64 MB
_ROWS = 65_536
_CODES_A_VECTOR = 28  # fetching and comparing a vector takes the time of so many codes
_ROUNDING = 2e-5  # two float32 sums of one dot product of unit vectors differ by less


def nearest(
    sight: Sight, queries: Vectors, k: int, where: Condition | None, *, exact: bool
) -> list[Passages]:
    """The k best passages for each query; `exact`: every one is compared."""
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    chosen = None if where is None else sight.chosen(sight.view.meeting(where))
    if chosen is None and not sight.whole:
        chosen = sight.alive
    every = sight.lists is None or exact or _few(sight.lists, k, chosen)
    find = _compared if every else _listed
    found = find(sight, queries, k, chosen)
    return [_ranked(sight, query, k, slots, every) for query, slots in zip(queries, found, strict=True)]


def _few(lists: Lists, k: int, chosen: NDArray[np.bool_] | None) -> bool:
    """It is quicker to compare all that are chosen than to look for them in the lists."""
    if chosen is None:
        return False
    count = int(np.count_nonzero(chosen))
    return count * _CODES_A_VECTOR <= lists.compares(k, count / len(chosen))


def _listed(sight: Sight, queries: Vectors, k: int, chosen: NDArray[np.bool_] | None) -> list[Slots]:
    """Candidates by code, and those of the tail by comparison."""
    lists = sight.lists
    assert lists is not None
    inside = lists.count if chosen is None else int(np.count_nonzero(chosen[: lists.count]))
    rows = lists.search(queries, k, chosen) if inside else np.empty((len(queries), 0), dtype=np.int64)
    found = [row[row >= 0] for row in rows]
    # A filter that goes along with the lists may leave the visited ones empty.
    short = [place for place, row in enumerate(found) if len(row) < min(inside, lists.candidates(k))]
    if short:
        again = lists.search(queries[short], k, chosen, widely=True)
        for place, row in zip(short, again, strict=True):
            found[place] = row[row >= 0]
    if sight.count == lists.count:
        return found
    tail = _compared(sight, queries, k, chosen, lists.count)
    return [np.concatenate(both) for both in zip(found, tail, strict=True)]


def _compared(
    sight: Sight, queries: Vectors, k: int, chosen: NDArray[np.bool_] | None, first: int = 0
) -> list[Slots]:
    """Of the slots from `first` on those that may be among the k best, by one matrix product."""
    slots: Slots | None = None
    if chosen is not None:
        slots = first + np.flatnonzero(chosen[first:])
    count = sight.count - first if slots is None else len(slots)
    if not count:
        return [np.empty(0, dtype=np.int64)] * len(queries)
    out: list[Slots] = []
    group = max(1, _AT_ONCE // count)
    for begin in range(0, len(queries), group):
        asked = queries[begin : begin + group]
        score = np.empty((len(asked), count), dtype=np.float32)
        for start in range(0, count, _ROWS):
            end = min(start + _ROWS, count)
            block = _block(sight, slots, first, start, end)
            if len(asked) == 1:  # a quarter of the time of a product of matrices
                score[0, start:end] = block @ asked[0]
            else:
                score[:, start:end] = asked @ block.T
        for row in score:
            near = _reaching(row, k)
            out.append(first + near if slots is None else slots[near])
    return out


def _block(sight: Sight, slots: Slots | None, first: int, start: int, end: int) -> Vectors:
    if slots is None:
        return sight.copies.run(first + start, first + end)
    return sight.copies.vectors(slots[start:end])


def _reaching(score: Vectors, k: int) -> Slots:
    """Places of the k highest and of all that rounding may have put below them."""
    if k >= len(score):
        return np.arange(len(score), dtype=np.int64)
    floor = np.partition(score, len(score) - k)[len(score) - k] - _ROUNDING
    return np.flatnonzero(score >= floor)


def _ranked(sight: Sight, query: Vectors, k: int, slots: Slots, exact: bool) -> Passages:
    """By exact score, then id and part."""
    vectors = sight.copies.vectors(slots)
    count = np.arange(len(slots))
    score = exact_scores("product", query[None], vectors, np.zeros_like(count), count)
    if len(score) > k:
        near = np.flatnonzero(score >= np.partition(score, len(score) - k)[len(score) - k])
        slots, score, vectors = slots[near], score[near], vectors[near]
    position = sight.position[slots]
    ids, parts = sight.view.ids_at(position), sight.view.part[position]
    places: list[Any] = sorted(range(len(ids)), key=lambda place: (-score[place], ids[place], parts[place]))
    order = np.asarray(places[:k], dtype=np.int64)
    return Passages(
        id=[ids[place] for place in order],
        part=parts[order],
        text=sight.copies.texts(slots[order]),
        fields=sight.view.fields_at(position[order]),
        score=score[order],
        vector=vectors[order],
        exact=exact,
    )

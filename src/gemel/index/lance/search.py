"""The nearest passages in one sight of a table: candidates from lists or from all, then exact scores and order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import depths, joined
from gemel.index.lance.ann import Lists
from gemel.index.lance.snapshot import Snapshot
from gemel.index.port import Passages
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.scan.native_scanner import chosen_level, has_int8
from gemel.vectors.search import search

Slots = NDArray[np.int64]

Chosen = NDArray[np.bool_] | None

_AT_ONCE = 1 << 24  # scores that are held at once: 64 MB

_ROWS = 65_536

_CODES_A_VECTOR = 28  # fetching and comparing a vector takes the time of so many codes

_ROUNDING = 2e-5  # two float32 sums of one dot product of unit vectors differ by less

_SEVERAL = 8  # queries from which on the compiled scan is quicker than a product for each

_MANY = 64  # and from which on a scan of all may be quicker than lists

_SCANNED_NS = {
    True: 4.0,
    False: 14.0,
}  # a vector of 384 numbers for one of many queries; with and without int8

_CODE_NS = 25.0  # a code of such a vector

_ANSWER_NS = 20_000.0  # what a query costs in the lists, however few codes

_WIDER = 8  # times the candidates where equal ones go on behind the last


@dataclass(frozen=True, eq=False)
class _Ranking:
    """The best of one query, best first; ties by id and part."""

    slots: Slots
    score: Vectors


def nearest(
    sight: Snapshot,
    queries: Vectors,
    k: int,
    where: Condition | None,
    *,
    exact: bool,
    recall: float | None = None,
    far: bool = False,
) -> list[Passages]:
    """The k best passages for each query; `exact`: every one is compared. See `Table.nearest`."""
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    chosen = None if where is None else sight.chosen(sight.view.meeting(where))
    if chosen is None and not sight.whole:
        chosen = sight.alive
    usual = None if exact or sight.lists is None else sight.lists.tuned_for(recall)
    if sight.lists is None or usual is None or _scan_is_quicker(usual, len(queries), chosen):
        return _nearest(sight, None, queries, k, chosen)
    # The vector and the requested recall decide how widely a query is searched: the same in any batch, for any page.
    wider = np.ones(len(queries), dtype=np.bool_) if far else sight.lists.unlike(queries, recall)
    out: dict[int, Passages] = {}
    for kind in (False, True):
        positions = np.flatnonzero(wider == kind)
        if len(positions):
            lists = sight.lists.tuned_for(recall, far=kind)
            found = _nearest(sight, lists, queries[positions], k, chosen)
            out.update(zip(positions.tolist(), found, strict=True))
    return [out[position] for position in range(len(queries))]


def _nearest(
    sight: Snapshot, lists: Lists | None, queries: Vectors, k: int, chosen: Chosen
) -> list[Passages]:
    """Through these lists; None: every passage is compared."""
    # How many are asked for decides nothing here: another page of the same query goes the same way.
    if lists is None or _few(lists, chosen) or _scan_is_quicker(lists, len(queries), chosen):
        return _passages(sight, _every(sight, queries, k, chosen), exact=True)
    sizes = depths(k)
    found = [_listed(sight, lists, queries, depth, chosen) for depth in sizes]
    if len(sizes) == 1:
        return _passages(sight, [_Ranking(each.slots[:k], each.score[:k]) for each in found[0]], exact=False)
    return _passages(sight, [_one_ranking(each, sizes, k) for each in zip(*found, strict=True)], exact=False)


def _few(lists: Lists, chosen: Chosen) -> bool:
    """It is quicker to compare all that are chosen than to look for them in the lists."""
    if chosen is None:
        return False
    count = int(np.count_nonzero(chosen))
    return count * _CODES_A_VECTOR <= lists.compares(count / len(chosen))


def _scan_is_quicker(lists: Lists, queries: int, chosen: Chosen) -> bool:
    """Many queries share the reading of the vectors."""
    if queries < _MANY:
        return False
    count = lists.count if chosen is None else int(np.count_nonzero(chosen))
    scale = int(lists.index.d) / 384
    scanned = count * _SCANNED_NS[has_int8(chosen_level())] * scale
    return scanned < lists.compares(count / max(1, lists.count)) * _CODE_NS * scale + _ANSWER_NS


def _one_ranking(found: tuple[_Ranking, ...], sizes: list[int], k: int) -> _Ranking:
    order = joined([each.slots.tolist() for each in found], sizes)[:k]
    return _Ranking(
        np.array([found[number].slots[place] for number, place in order], dtype=np.int64),
        np.array([found[number].score[place] for number, place in order], dtype=np.float32),
    )


def _listed(sight: Snapshot, lists: Lists, queries: Vectors, k: int, chosen: Chosen) -> list[_Ranking]:
    """Candidates by code, and those of the tail by comparison."""
    inside = lists.count if chosen is None else int(np.count_nonzero(chosen[: lists.count]))
    if not inside:
        return _ranked(sight, queries, _tail(sight, lists, queries, k, chosen), k)
    codes = lists.search(queries, k, chosen)
    tail = _tail(sight, lists, queries, k, chosen)
    ready = _ranked(sight, queries, [_both(row, tail[n]) for n, row in enumerate(codes.slots)], k)
    missing = np.count_nonzero(codes.slots < 0, axis=1) > codes.slots.shape[1] - min(inside, k)
    again = [
        place
        for place in range(len(queries))
        if missing[place] or codes.may_go_on(place, ready[place].slots, k)
    ]
    wide = lists.candidates(k)
    while again:
        # A filter may leave the visited lists empty; and of equal ones those with the lowest ids are to be found.
        wide *= _WIDER
        if wide >= inside:
            rest = _every(sight, queries[again], k, chosen)
        else:
            more = lists.search(queries[again], k, chosen, widely=True, wide=wide)
            rows = [_both(row, tail[place]) for place, row in zip(again, more.slots, strict=True)]
            rest = _ranked(sight, queries[again], rows, k)
        for place, ranking in zip(again, rest, strict=True):
            ready[place] = ranking
        if wide >= inside:
            break
        again = [place for n, place in enumerate(again) if more.may_go_on(n, rest[n].slots, k)]
    return ready


def _both(row: Slots, tail: Slots) -> Slots:
    return np.concatenate([row[row >= 0], tail])


def _tail(sight: Snapshot, lists: Lists, queries: Vectors, k: int, chosen: Chosen) -> list[Slots]:
    if sight.count == lists.count:
        return [np.empty(0, dtype=np.int64)] * len(queries)
    return _compared(sight, queries, k, chosen, lists.count)


def _every(sight: Snapshot, queries: Vectors, k: int, chosen: Chosen) -> list[_Ranking]:
    """Of all that are chosen."""
    if len(queries) < _SEVERAL:
        return _ranked(sight, queries, _compared(sight, queries, k, chosen), k)
    found: list[list[Slots]] = [[] for _ in queries]
    tied: set[int] = set()
    for start, vectors in sight.copies.blocks(sight.count):
        where = None if chosen is None else np.flatnonzero(chosen[start : start + len(vectors)])
        hits = search(queries, vectors, k + 1, "dot", where=where)
        if hits.index.shape[1] > k:  # of equal ones the scan gives those that came first, not the lowest ids
            tied.update(np.flatnonzero(hits.score[:, k - 1] == hits.score[:, k]).tolist())
        for place, row in enumerate(hits.index):
            found[place].append(row + start)
    for place in tied:
        found[place] = _compared(sight, queries[place : place + 1], k, chosen)
    none = np.empty(0, dtype=np.int64)
    return _ranked(sight, queries, [np.concatenate([none, *parts]) for parts in found], k)


def _compared(sight: Snapshot, queries: Vectors, k: int, chosen: Chosen, first: int = 0) -> list[Slots]:
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


def _block(sight: Snapshot, slots: Slots | None, first: int, start: int, end: int) -> Vectors:
    if slots is None:
        return sight.copies.run(first + start, first + end)
    return sight.copies.vectors(slots[start:end])


def _reaching(score: Vectors, k: int) -> Slots:
    """Places of the k highest and of all that rounding may have put below them."""
    if k >= len(score):
        return np.arange(len(score), dtype=np.int64)
    floor = np.partition(score, len(score) - k)[len(score) - k] - _ROUNDING
    return np.flatnonzero(score >= floor)


def _ranked(sight: Snapshot, queries: Vectors, candidates: list[Slots], k: int) -> list[_Ranking]:
    """By exact score, then id and part."""
    sizes = np.array([len(each) for each in candidates], dtype=np.int64)
    flat = np.concatenate([np.empty(0, dtype=np.int64), *candidates])
    scores = sight.copies.scores(queries, np.repeat(np.arange(len(queries)), sizes), flat)
    ends = np.cumsum(sizes)
    return [
        _best(sight, flat[end - size : end], scores[end - size : end], k)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


def _best(sight: Snapshot, slots: Slots, score: Vectors, k: int) -> _Ranking:
    if len(score) > k:
        near = np.flatnonzero(score >= np.partition(score, len(score) - k)[len(score) - k])
        slots, score = slots[near], score[near]
    order = np.argsort(-score, kind="stable")
    slots, score = slots[order], score[order]
    if len(score) > 1 and (score[1:] == score[:-1]).any():
        position = sight.position[slots]
        ids, parts = sight.view.ids_at(position), sight.view.part[position]
        order = np.array(sorted(range(len(ids)), key=lambda at: (-score[at], ids[at], parts[at])), np.int64)
        slots, score = slots[order], score[order]
    return _Ranking(slots[:k], score[:k])


def _passages(sight: Snapshot, rankings: list[_Ranking], *, exact: bool) -> list[Passages]:
    """What is asked of a passage is looked up for all queries at once."""
    slots = np.concatenate([np.empty(0, dtype=np.int64), *(each.slots for each in rankings)])
    position = sight.position[slots]
    ids, parts = sight.view.ids_at(position), sight.view.part[position]
    fields, texts = sight.view.fields_at(position), sight.copies.texts(slots)
    vectors = sight.copies.vectors(slots)
    out: list[Passages] = []
    start = 0
    for each in rankings:
        here = slice(start, start + len(each.slots))
        start = here.stop
        out.append(
            Passages(
                id=ids[here],
                part=parts[here],
                text=texts[here],
                fields={name: values[here] for name, values in fields.items()},
                score=each.score,
                vector=vectors[here],
                exact=exact,
            )
        )
    return out

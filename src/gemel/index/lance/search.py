"""The nearest passages in a snapshot of a table: candidates from lists or all vectors, then exact scores and order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import depths, joined
from gemel.index.lance.ann import Lists
from gemel.index.lance.snapshot import TableSnapshot
from gemel.index.port import Passages
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.scan.native_scanner import chosen_level, has_int8
from gemel.vectors.search import search

Slots = NDArray[np.int64]

Chosen = NDArray[np.bool_] | None

_AT_ONCE = 1 << 24  # scores in memory at once: 64 MB

_ROWS = 65_536

_CODES_PER_VECTOR = 28  # fetching and comparing a vector takes the time of so many codes

_ROUNDING = 2e-5  # two float32 sums of one dot product of unit vectors differ by less

_SEVERAL = 8  # queries from which on the compiled scan is faster than a product for each

_MANY = 64  # queries from which on a scan of all vectors may be faster than lists

_SCANNED_NS = {True: 4.0, False: 14.0}  # per vector of 384 numbers and query, of many; with and without int8

_CODE_NS = 25.0  # per code of such a vector

_ANSWER_NS = 20_000.0  # per query in the lists, however few codes

_WIDER = 8  # times the candidates if equal ones may follow the last


@dataclass(frozen=True, eq=False)
class _Ranking:
    """The best of one query, best first; ties by id and part."""

    slots: Slots
    score: Vectors


def nearest(
    snapshot: TableSnapshot,
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
    chosen = None if where is None else snapshot.chosen(snapshot.view.meeting(where))
    if chosen is None and not snapshot.complete:
        chosen = snapshot.alive
    usual = None if exact or snapshot.lists is None else snapshot.lists.tuned_for(recall)
    if snapshot.lists is None or usual is None or _scan_is_faster(usual, len(queries), chosen):
        return _nearest(snapshot, None, queries, k, chosen)
    # The vector and the requested recall decide how widely a query is searched: the same in any batch, for any page.
    wider = np.ones(len(queries), dtype=np.bool_) if far else snapshot.lists.unlike(queries, recall)
    out: dict[int, Passages] = {}
    for kind in (False, True):
        positions = np.flatnonzero(wider == kind)
        if len(positions):
            lists = snapshot.lists.tuned_for(recall, far=kind)
            found = _nearest(snapshot, lists, queries[positions], k, chosen)
            out.update(zip(positions.tolist(), found, strict=True))
    return [out[position] for position in range(len(queries))]


def _nearest(
    snapshot: TableSnapshot, lists: Lists | None, queries: Vectors, k: int, chosen: Chosen
) -> list[Passages]:
    """With candidates from these lists; None: every passage is compared."""
    # Independent of k, so that another page of the same query is searched the same way.
    if lists is None or _few(lists, chosen) or _scan_is_faster(lists, len(queries), chosen):
        return _passages(snapshot, _all(snapshot, queries, k, chosen), exact=True)
    sizes = depths(k)
    found = [_listed(snapshot, lists, queries, depth, chosen) for depth in sizes]
    if len(sizes) == 1:
        return _passages(
            snapshot, [_Ranking(each.slots[:k], each.score[:k]) for each in found[0]], exact=False
        )
    return _passages(
        snapshot, [_one_ranking(each, sizes, k) for each in zip(*found, strict=True)], exact=False
    )


def _few(lists: Lists, chosen: Chosen) -> bool:
    """Whether it is faster to compare all chosen vectors than to search them in the lists."""
    if chosen is None:
        return False
    count = int(np.count_nonzero(chosen))
    return count * _CODES_PER_VECTOR <= lists.compares(count / len(chosen))


def _scan_is_faster(lists: Lists, queries: int, chosen: Chosen) -> bool:
    """Whether a scan of all vectors is faster: many queries share the reading of the vectors."""
    if queries < _MANY:
        return False
    count = lists.count if chosen is None else int(np.count_nonzero(chosen))
    scale = int(lists.index.d) / 384
    scanned = count * _SCANNED_NS[has_int8(chosen_level())] * scale
    return scanned < lists.compares(count / max(1, lists.count)) * _CODE_NS * scale + _ANSWER_NS


def _one_ranking(found: tuple[_Ranking, ...], sizes: list[int], k: int) -> _Ranking:
    order = joined([each.slots.tolist() for each in found], sizes)[:k]
    return _Ranking(
        np.array([found[number].slots[n] for number, n in order], dtype=np.int64),
        np.array([found[number].score[n] for number, n in order], dtype=np.float32),
    )


def _listed(
    snapshot: TableSnapshot, lists: Lists, queries: Vectors, k: int, chosen: Chosen
) -> list[_Ranking]:
    """Candidates from the codes, and from the vectors outside the lists by comparison."""
    inside = lists.count if chosen is None else int(np.count_nonzero(chosen[: lists.count]))
    if not inside:
        return _ranked(snapshot, queries, _tail(snapshot, lists, queries, k, chosen), k)
    codes = lists.search(queries, k, chosen)
    tail = _tail(snapshot, lists, queries, k, chosen)
    ready = _ranked(snapshot, queries, [_both(row, tail[n]) for n, row in enumerate(codes.slots)], k)
    missing = np.count_nonzero(codes.slots < 0, axis=1) > codes.slots.shape[1] - min(inside, k)
    again = [n for n in range(len(queries)) if missing[n] or codes.may_have_ties(n, ready[n].slots, k)]
    wide = lists.candidates(k)
    while again:
        # A filter may leave the visited lists empty; and of equal scores those with the lowest ids come first.
        wide *= _WIDER
        if wide >= inside:
            rest = _all(snapshot, queries[again], k, chosen)
        else:
            more = lists.search(queries[again], k, chosen, widely=True, wide=wide)
            rows = [_both(row, tail[n]) for n, row in zip(again, more.slots, strict=True)]
            rest = _ranked(snapshot, queries[again], rows, k)
        for n, ranking in zip(again, rest, strict=True):
            ready[n] = ranking
        if wide >= inside:
            break
        again = [n for m, n in enumerate(again) if more.may_have_ties(m, rest[m].slots, k)]
    return ready


def _both(row: Slots, tail: Slots) -> Slots:
    return np.concatenate([row[row >= 0], tail])


def _tail(snapshot: TableSnapshot, lists: Lists, queries: Vectors, k: int, chosen: Chosen) -> list[Slots]:
    if snapshot.count == lists.count:
        return [np.empty(0, dtype=np.int64)] * len(queries)
    return _compared(snapshot, queries, k, chosen, lists.count)


def _all(snapshot: TableSnapshot, queries: Vectors, k: int, chosen: Chosen) -> list[_Ranking]:
    """The best of all chosen vectors."""
    if len(queries) < _SEVERAL:
        return _ranked(snapshot, queries, _compared(snapshot, queries, k, chosen), k)
    found: list[list[Slots]] = [[] for _ in queries]
    tied: set[int] = set()
    for start, vectors in snapshot.copies.blocks(snapshot.count):
        where = None if chosen is None else np.flatnonzero(chosen[start : start + len(vectors)])
        hits = search(queries, vectors, k + 1, "dot", where=where)
        if hits.index.shape[1] > k:  # of equal scores the scan gives the first rows, not the lowest ids
            tied.update(np.flatnonzero(hits.score[:, k - 1] == hits.score[:, k]).tolist())
        for n, row in enumerate(hits.index):
            found[n].append(row + start)
    for n in tied:
        found[n] = _compared(snapshot, queries[n : n + 1], k, chosen)
    none = np.empty(0, dtype=np.int64)
    return _ranked(snapshot, queries, [np.concatenate([none, *parts]) for parts in found], k)


def _compared(
    snapshot: TableSnapshot, queries: Vectors, k: int, chosen: Chosen, first: int = 0
) -> list[Slots]:
    """Slots from `first` on that may be among the k best, by a matrix product."""
    slots: Slots | None = None
    if chosen is not None:
        slots = first + np.flatnonzero(chosen[first:])
    count = snapshot.count - first if slots is None else len(slots)
    if not count:
        return [np.empty(0, dtype=np.int64)] * len(queries)
    out: list[Slots] = []
    group = max(1, _AT_ONCE // count)
    for begin in range(0, len(queries), group):
        part = queries[begin : begin + group]
        score = np.empty((len(part), count), dtype=np.float32)
        for start in range(0, count, _ROWS):
            end = min(start + _ROWS, count)
            block = _block(snapshot, slots, first, start, end)
            if len(part) == 1:  # a quarter of the time of a product of matrices
                score[0, start:end] = block @ part[0]
            else:
                score[:, start:end] = part @ block.T
        for row in score:
            near = _reaching(row, k)
            out.append(first + near if slots is None else slots[near])
    return out


def _block(snapshot: TableSnapshot, slots: Slots | None, first: int, start: int, end: int) -> Vectors:
    if slots is None:
        return snapshot.copies.run(first + start, first + end)
    return snapshot.copies.vectors(slots[start:end])


def _reaching(score: Vectors, k: int) -> Slots:
    """Positions of the k highest scores, and of all that rounding may have put below them."""
    if k >= len(score):
        return np.arange(len(score), dtype=np.int64)
    floor = np.partition(score, len(score) - k)[len(score) - k] - _ROUNDING
    return np.flatnonzero(score >= floor)


def _ranked(snapshot: TableSnapshot, queries: Vectors, candidates: list[Slots], k: int) -> list[_Ranking]:
    """By exact score, then id and part."""
    sizes = np.array([len(each) for each in candidates], dtype=np.int64)
    flat = np.concatenate([np.empty(0, dtype=np.int64), *candidates])
    scores = snapshot.copies.scores(queries, np.repeat(np.arange(len(queries)), sizes), flat)
    ends = np.cumsum(sizes)
    return [
        _best(snapshot, flat[end - size : end], scores[end - size : end], k)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


def _best(snapshot: TableSnapshot, slots: Slots, score: Vectors, k: int) -> _Ranking:
    if len(score) > k:
        near = np.flatnonzero(score >= np.partition(score, len(score) - k)[len(score) - k])
        slots, score = slots[near], score[near]
    order = np.argsort(-score, kind="stable")
    slots, score = slots[order], score[order]
    if len(score) > 1 and (score[1:] == score[:-1]).any():
        position = snapshot.position[slots]
        ids, parts = snapshot.view.ids_at(position), snapshot.view.part[position]
        order = np.array(sorted(range(len(ids)), key=lambda at: (-score[at], ids[at], parts[at])), np.int64)
        slots, score = slots[order], score[order]
    return _Ranking(slots[:k], score[:k])


def _passages(snapshot: TableSnapshot, rankings: list[_Ranking], *, exact: bool) -> list[Passages]:
    """The rows of the passages, looked up for all queries at once."""
    slots = np.concatenate([np.empty(0, dtype=np.int64), *(each.slots for each in rankings)])
    position = snapshot.position[slots]
    ids, parts = snapshot.view.ids_at(position), snapshot.view.part[position]
    fields, texts = snapshot.view.fields_at(position), snapshot.copies.texts(slots)
    vectors = snapshot.copies.vectors(slots)
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

"""The best passages of a table, by vectors in a snapshot of it, and by words.

By vectors: candidates from lists or all vectors, then exact scores and order. By words (BM25): counted in memory while
the table is small, by Lance's inverted index when it is large.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import depths, joined
from gemel.index.lance.ann import Lists
from gemel.index.lance.columns import WORDS, searched_columns, vectors_in
from gemel.index.lance.recovery import READ_ERRORS, first_line, panics_raised
from gemel.index.lance.snapshot import TableSnapshot
from gemel.index.lance.view import Positions, View
from gemel.index.port import Passages
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index
from gemel.vectors.scan.native_scanner import chosen_level, has_int8
from gemel.vectors.search import search

Slots = NDArray[np.int64]

Chosen = NDArray[np.bool_] | None

MANY = 5_000
"""Passages from which on the table keeps an index of words."""

_WORD_INDEX = "words"  # its name in the table

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


class Words:
    """Search by words in one table; keeps the counts of the last version that was searched."""

    def __init__(self, many: int = MANY) -> None:
        self._many = many
        self._lock = threading.Lock()
        self._counted: _Counted | None = None
        self._broken: frozenset[str] = frozenset()

    def uses_index(self, view: View) -> bool:
        """Answers come from the index of words of this version."""
        return bool(found := word_segments(view)) and found != self._broken

    def leave_out_index(self, view: View) -> None:
        """As it cannot be read: words are counted in memory until there is another."""
        self._broken = word_segments(view)

    def wanted(self, view: View) -> bool:
        """The table is large and has no index of words yet."""
        return view.passages >= self._many and not word_segments(view)

    def find(self, view: View, query: str, k: int, where: Condition | None) -> Passages:
        if self.uses_index(view):
            return _found_in_index(view, query, k, where)
        return self._count(view).find(query, k, where)

    def _count(self, view: View) -> _Counted:
        with self._lock:
            if self._counted is None or self._counted.view.version != view.version:
                self._counted = _Counted(view)
            return self._counted


def word_faults(view: View) -> list[str]:
    """What is wrong with the index of words; every file of it is read."""
    from lance.file import LanceFileReader

    segments = word_segments(view)
    if not segments or "://" in view.dataset.uri:
        return []
    for segment in sorted(segments):
        folder = Path(view.dataset.uri) / "_indices" / segment
        if not any(folder.glob("*.lance")):
            return [f"the index of words has lost its folder _indices/{segment}"]
        for path in sorted(folder.glob("*.lance")):
            try:
                with panics_raised():
                    for _ in LanceFileReader(str(path)).read_all(batch_size=1024).to_batches():
                        pass
            except READ_ERRORS as error:
                return [
                    f"_indices/{segment}/{path.name} of the index of words is damaged ({first_line(error)})"
                ]
    try:
        with panics_raised():
            _found_in_index(view, "a", 1, None)
    except READ_ERRORS as error:
        return [f"the index of words does not answer ({first_line(error)})"]
    return []


def word_segments(view: View) -> frozenset[str]:
    """The names of the folders of the index of words; none: there is no index."""
    found = [each for each in view.dataset.describe_indices() if each.name == _WORD_INDEX]
    return frozenset(str(part.uuid) for each in found for part in each.segments)


def create_word_index(dataset: Any) -> None:  # noqa: ANN401 - lance has no types
    """One commit. The words were cut when they were written; of a table of format 1 Lance cuts the text itself."""
    column = _column(dataset.schema.names)
    dataset.create_scalar_index(
        column,
        "INVERTED",
        name=_WORD_INDEX,
        with_position=False,
        base_tokenizer="whitespace" if column == WORDS else "simple",
        lower_case=column != WORDS,
        stem=False,
        remove_stop_words=False,
        ascii_folding=False,
        max_token_length=None,
    )


def _column(names: list[str]) -> str:
    return WORDS if WORDS in names else "text"


class _Counted:
    """The words of all passages of one version."""

    def __init__(self, view: View) -> None:
        self.view = view
        table = view.dataset.scanner(columns=["id", "part", "text"], scan_in_order=True).to_table()
        # Ascending by id and part, so that equal scores come in that order.
        parts = list(zip(table["id"].to_pylist(), table["part"].to_pylist(), strict=True))
        order = sorted(range(len(parts)), key=parts.__getitem__)
        texts = table["text"].to_pylist()
        self._position = np.flatnonzero(view.live)[np.asarray(order, dtype=np.int64)]
        self._index = BM25Index([texts[row] for row in order], rules=view.header.words)

    def find(self, query: str, k: int, where: Condition | None) -> Passages:
        inside = None if where is None else self.view.meeting(where)[self._position]
        hits = self._index.rank([query], k, inside)
        there = hits.index[0] >= 0
        return passages_at(self.view, self._position[hits.index[0][there]], hits.score[0][there])


def _found_in_index(view: View, query: str, k: int, where: Condition | None) -> Passages:
    """Rows that came after the index was made are compared by Lance one by one."""
    from lance.query import MatchQuery

    words = view.header.words.query(query)
    if not words:
        return passages_at(view, np.empty(0, np.int64), np.empty(0, np.float32))
    # Words alone, never the query as it was written: Lance would read its quotes and signs as a language.
    match = MatchQuery(" ".join(words), _column(view.dataset.schema.names))
    # A filter is put on afterwards where most rows pass; Lance's own would read the columns from disk again.
    wide = k + 50
    while True:
        table = view.dataset.scanner(
            columns=["_score"], full_text_query=match, with_row_address=True, limit=wide
        ).to_table()
        position = view.positions(table["_rowaddr"].to_numpy())
        score = table["_score"].to_numpy().astype(np.float32)
        if where is not None:
            inside = view.meeting(where)[position]
            position, score = position[inside], score[inside]
        # Of equal scores Lance gives any: where they continue after the limit, more are fetched to find the lowest ids.
        if len(table) < wide or (len(position) >= k and _settled(score, k)):
            break
        wide *= 4
    ids, parts = view.ids_at(position), view.part[position]
    order = sorted(range(len(ids)), key=lambda n: (-score[n], ids[n], parts[n]))[:k]
    return passages_at(view, position[order], score[order])


def _settled(score: Vectors, k: int) -> bool:
    """The k-th score is higher than the last."""
    return bool(np.partition(score, len(score) - k)[len(score) - k] > score.min())


def passages_at(view: View, position: Positions, score: Vectors) -> Passages:
    """The rows at these positions, read from the table."""
    table = view.take(position, searched_columns(view.header))
    return Passages(
        id=view.ids_at(position),
        part=view.part[position],
        text=table["text"].to_pylist(),
        fields=view.fields_at(position),
        score=score,
        vector=vectors_in(table),
    )

"""Search by words: counted in memory while the table is small, by Lance's inverted index when it is large."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemel.index.lance.columns import WORDS, matrix
from gemel.index.lance.recovery import READ_ERRORS, first_line, panics_raised
from gemel.index.lance.view import Positions, View
from gemel.index.port import Passages
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index

MANY = 5_000
"""Passages from which on the table keeps an index of words."""
_NAME = "words"


class Words:
    """Search by words in one table; keeps the counts of the last version that was searched."""

    def __init__(self, many: int = MANY) -> None:
        self._many = many
        self._lock = threading.Lock()
        self._counted: _Counted | None = None
        self._broken: frozenset[str] = frozenset()

    def uses_index(self, view: View) -> bool:
        """Answers come from the index of words of this version."""
        return bool(found := _segments(view)) and found != self._broken

    def leave_out_index(self, view: View) -> None:
        """As it cannot be read: words are counted in memory until there is another."""
        self._broken = _segments(view)

    def wanted(self, view: View) -> bool:
        """The table is large and has no index of words yet."""
        return view.passages >= self._many and not indexed(view)

    def find(self, view: View, query: str, k: int, where: Condition | None) -> Passages:
        if self.uses_index(view):
            position, score = _asked(view, query, k, where)
        else:
            position, score = self._count(view).find(query, k, where)
        return _passages(view, position, score)

    def _count(self, view: View) -> _Counted:
        with self._lock:
            if self._counted is None or self._counted.view.version != view.version:
                self._counted = _Counted(view)
            return self._counted


def indexed(view: View) -> bool:
    return any(each.name == _NAME for each in view.dataset.describe_indices())


def faults(view: View) -> list[str]:
    """What is wrong with the index of words; every file of it is read."""
    segments = _segments(view)
    if not segments or "://" in view.dataset.uri:
        return []
    for segment in sorted(segments):
        folder = Path(view.dataset.uri) / "_indices" / segment
        if not any(folder.glob("*.lance")):
            return [f"the index of words has lost its folder _indices/{segment}"]
        for path in sorted(folder.glob("*.lance")):
            try:
                with panics_raised():
                    _read_all(path)
            except READ_ERRORS as error:
                return [
                    f"_indices/{segment}/{path.name} of the index of words is damaged ({first_line(error)})"
                ]
    try:
        with panics_raised():
            _asked(view, "a", 1, None)
    except READ_ERRORS as error:
        return [f"the index of words does not answer ({first_line(error)})"]
    return []


def _read_all(path: Path) -> None:
    from lance.file import LanceFileReader

    for _ in LanceFileReader(str(path)).read_all(batch_size=1024).to_batches():
        pass


def _segments(view: View) -> frozenset[str]:
    """The names of the folders of the index of words; none: there is no index."""
    found = [each for each in view.dataset.describe_indices() if each.name == _NAME]
    return frozenset(str(part.uuid) for each in found for part in each.segments)


def create(dataset: Any) -> None:  # noqa: ANN401 - lance has no types
    """One commit. The words were cut when they were written; of a table of format 1 Lance cuts the text itself."""
    column = _column(dataset.schema.names)
    dataset.create_scalar_index(
        column,
        "INVERTED",
        name=_NAME,
        with_position=False,
        base_tokenizer="whitespace" if column == WORDS else "simple",
        lower_case=column != WORDS,
        stem=False,
        remove_stop_words=False,
        ascii_folding=False,
        max_token_length=None,
    )


def _column(names: Sequence[str]) -> str:
    return WORDS if WORDS in names else "text"


class _Counted:
    """The words of all passages of one version."""

    def __init__(self, view: View) -> None:
        import pyarrow.compute as pc

        self.view = view
        table = view.dataset.scanner(columns=["id", "part", "text"], scan_in_order=True).to_table()
        # Ascending by id and part, so that equal scores come in that order.
        order = pc.sort_indices(table, sort_keys=[("id", "ascending"), ("part", "ascending")])
        self._position = np.flatnonzero(view.live)[order.to_numpy()]
        self._index = BM25Index(table["text"].take(order).to_pylist(), rules=view.header.words)

    def find(self, query: str, k: int, where: Condition | None) -> tuple[Positions, Vectors]:
        inside = None if where is None else self.view.meeting(where)[self._position]
        hits = self._index.rank([query], k, inside)
        there = hits.index[0] >= 0
        return self._position[hits.index[0][there]], hits.score[0][there]


def _asked(view: View, query: str, k: int, where: Condition | None) -> tuple[Positions, Vectors]:
    """Rows that came after the index was made are compared by Lance one by one."""
    from lance.query import MatchQuery

    words = view.header.words.query(query)
    if not words:
        return np.empty(0, np.int64), np.empty(0, np.float32)
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
        # Of equal scores Lance gives some: where they go on behind the limit, it takes more to know the lower ids.
        if len(table) < wide or (len(position) >= k and _settled(score, k)):
            break
        wide *= 4
    ids, parts = view.ids_at(position), view.part[position]
    order = sorted(range(len(ids)), key=lambda n: (-score[n], ids[n], parts[n]))[:k]
    return position[order], score[order]


def _settled(score: Vectors, k: int) -> bool:
    """The k-th score is higher than the last."""
    return bool(np.partition(score, len(score) - k)[len(score) - k] > score.min())


def _passages(view: View, position: Positions, score: Vectors) -> Passages:
    table = view.take(position, ["text", "vector"])
    return Passages(
        id=view.ids_at(position),
        part=view.part[position],
        text=table["text"].to_pylist(),
        fields=view.fields_at(position),
        score=score,
        vector=matrix(table["vector"]),
    )

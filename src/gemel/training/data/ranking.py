"""Labelled pairs -> rows for ranking: what an anchor entails is its positive, what contradicts it its negative."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.labels import NLI, UNLABELLED, BadValueError, Labels, plain_name
from gemel.training.data.store import TableExamples

_MEANING: Mapping[str, int] = {
    **dict(zip(NLI, (1, 0, -1), strict=True)),
    "1": 1,
    "0": -1,
    "true": 1,
    "false": -1,
}


class RelationLabels:
    """1: the texts belong together · -1: they do not · 0: neither (neutral)."""

    def __init__(self, names: tuple[str, ...] | None) -> None:
        self._names = names
        self._values = array("q")

    def add(self, value: Any) -> None:  # noqa: ANN401 - whatever stands in the data
        name = plain_name(value)
        if name in UNLABELLED or (self._names and name == "-1"):
            raise BadValueError(f"no gold label ({value!r})")
        if self._names and name.isdigit() and int(name) < len(self._names):
            named = plain_name(self._names[int(name)])
            name = named if named in _MEANING else name
        if name.lower() not in _MEANING:
            raise BadValueError(
                f"the label {value!r} does not say whether two texts belong together: expected "
                f"{', '.join(NLI)}, or 0 and 1"
            )
        self._values.append(_MEANING[name.lower()])

    def done(self, where: str) -> Labels:
        return Labels(np.frombuffer(self._values, dtype=np.int64) if self._values else np.empty(0, np.int64))


def ranking_rows(pairs: TableExamples, *, alone: bool) -> list[TableExamples]:
    """(anchor, positive, negative) where an anchor has both; `alone`: also (anchor, positive) where it has no negative.

    Each positive makes one row. The negatives of an anchor are dealt to its positives in turn, in the data's order.
    """
    assert pairs.labels is not None
    positive = np.flatnonzero(pairs.labels == 1)
    negative = np.flatnonzero(pairs.labels == -1)
    dealt = _deal(pairs.hashes[:, 0], positive, negative)
    both, without = dealt >= 0, dealt < 0
    found = []
    if both.any():
        rows = positive[both]
        cells = np.column_stack([pairs.cells[rows], pairs.cells[dealt[both], 1]])
        found.append(_part(pairs, cells, ("anchor", "positive", "negative"), "with a negative"))
    if alone and without.any():
        cells = pairs.cells[positive[without]]
        found.append(_part(pairs, cells, ("anchor", "positive"), "without a negative"))
    return found


def _deal(
    anchors: NDArray[np.uint64], positive: NDArray[np.int64], negative: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each positive row, a negative row of the same anchor, or -1."""
    dealt = np.full(len(positive), -1, dtype=np.int64)
    if not len(negative):
        return dealt
    order = negative[np.argsort(anchors[negative], kind="stable")]
    keys, starts, counts = np.unique(anchors[order], return_index=True, return_counts=True)
    mine = np.argsort(anchors[positive], kind="stable")
    wanted = anchors[positive][mine]
    turn = np.arange(len(mine)) - np.searchsorted(wanted, wanted)  # 0, 1, 2 among the positives of one anchor
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    chosen = order[starts[place] + turn % counts[place]]
    dealt[mine] = np.where(keys[place] == wanted, chosen, -1)
    return dealt


def _part(pairs: TableExamples, cells: NDArray[np.int64], roles: tuple[str, ...], what: str) -> TableExamples:
    sizes = _characters(pairs)
    note = f"{len(cells):,} rows {what} out of {len(pairs):,} labelled pairs"
    return replace(
        pairs,
        name=pairs.name if len(roles) == 3 else f"{pairs.name}-pairs",
        roles=roles,
        cells=cells,
        lengths=sizes[cells].sum(axis=1).astype(np.int32),
        labels=None,
        notes=(*pairs.notes, note),
    )


def _characters(pairs: TableExamples) -> NDArray[np.int64]:
    """Of each text, by its bytes: exact where a character is a byte, near enough for grouping elsewhere."""
    return np.diff(pairs.texts.ends)

"""Pair files as one list of distinct texts and the pairs that are marked as meaning the same."""

from __future__ import annotations

from dataclasses import dataclass

from gemel.errors import InputError
from gemel.evaluation.data_files import with_columns
from gemel.evaluation.table import DataTable
from gemel.evaluation.text_columns import LEFT, RIGHT


@dataclass(frozen=True)
class LabelledPairs:
    """Distinct texts, and pairs of their positions (lower first) with label 1, each once."""

    texts: tuple[str, ...]
    same: tuple[tuple[int, int], ...]
    rows: int
    """Rows of the file, those with label 0 included: their texts are there too."""


PAIRS = with_columns(LEFT, RIGHT, ("label",))
"""The columns of a pair file."""


def read_pairs(table: DataTable) -> LabelledPairs:
    """Equal texts are one text, so a pair of a text with itself says nothing and is not kept."""
    labels = table.numbers("label")
    where: dict[str, int] = {}
    same: dict[tuple[int, int], None] = {}
    for row, (left, right) in enumerate(zip(table.texts(*LEFT), table.texts(*RIGHT), strict=True)):
        if labels[row] not in (0, 1):
            raise InputError(f"{table.place(row)}: label must be 0 or 1, got {labels[row]:g}")
        one, other = sorted((where.setdefault(left, len(where)), where.setdefault(right, len(where))))
        if labels[row] == 1 and one != other:
            same[one, other] = None
    if not same:
        raise InputError(f"{table.path} has no pair of two texts with label 1, so there is nothing to find")
    return LabelledPairs(tuple(where), tuple(same), len(table))

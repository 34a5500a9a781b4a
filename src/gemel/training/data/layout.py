"""The columns of a row as texts: a list of positives makes a row each, a list of negatives a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemel.text.rows import kind_of
from gemel.training.data.labels import BadValueError


@dataclass(frozen=True)
class Layout:
    """The roles of the texts of every row, and how many texts each column gives."""

    names: tuple[str, ...]
    """The columns' roles."""
    widths: tuple[int, ...]
    """Texts that each column gives to a row: 1, or as many as the first row's list has."""

    @property
    def plain(self) -> bool:
        """Each column gives one text."""
        return set(self.widths) == {1}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, width in zip(self.names, self.widths, strict=True) for _ in range(width))

    def rows(self, values: Sequence[Any]) -> list[Sequence[str]]:
        """The rows that one record makes: one, or one for each text in a list of positives."""
        if self.plain and all(type(value) is str for value in values):
            return [values]
        rows: list[list[str]] = [[]]
        for role, width, value in zip(self.names, self.widths, values, strict=True):
            texts = _texts(role, value)
            if role == "positive":
                rows = [[*row, text] for row in rows for text in texts]
            elif len(texts) < width:
                raise BadValueError(f"{len(texts)} texts in {role!r}, but the first row has {width}")
            else:
                rows = [[*row, *texts[:width]] for row in rows]
        return list(rows)


def layout_of(roles: tuple[str, ...], first: Sequence[Any]) -> Layout:
    """By the values of the first row."""
    lists = [
        len(value) if isinstance(value, list | tuple) and role != "positive" else 1
        for role, value in zip(roles, first, strict=False)
    ]
    return Layout(roles, tuple(max(1, width) for width in lists) if lists else (1,) * len(roles))


def _texts(role: str, value: Any) -> list[str]:  # noqa: ANN401 - whatever stands in the data
    texts = list(value) if isinstance(value, list | tuple) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise BadValueError(f"{role!r} must be a string, got {kind_of(text)}")
    if not texts:
        raise BadValueError(f"{role!r} is an empty list")
    return texts

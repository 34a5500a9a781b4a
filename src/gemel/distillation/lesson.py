"""What the teacher said, as a data set that training reads: columns in memory under a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any


class Lesson:
    """Has what training asks of a data set. In lists of settings it is its name, not its texts."""

    def __init__(self, name: str, columns: Mapping[str, Iterable[Any]]) -> None:
        self.info = SimpleNamespace(dataset_name=name)
        self._columns = dict(columns)

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def __repr__(self) -> str:
        return str(self.info.dataset_name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lesson:
        return self  # never changed, and as large as the corpus

"""Training data that was read and checked: texts on disk, labels, and what was noticed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.data.score_range import Range
from gemel.training.data.texts import Hashes, Texts
from gemel.training.examples import Batch, Rows


@dataclass(eq=False)
class TableExamples:
    """One data set for one objective. Fits `gemel.training.examples.Examples`."""

    name: str
    roles: tuple[str, ...]
    texts: Texts
    cells: NDArray[np.int64]
    """(n, columns) numbers of the texts of each row."""
    lengths: NDArray[np.int32]
    """(n,) characters of each row."""
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    score_range: Range | None = None
    notes: tuple[str, ...] = ()
    """What was decided about the data: columns, labels, scale."""
    skipped: int = 0
    """Bad rows that were left out."""
    bad: tuple[str, ...] = ()
    """The first few of them, as `file:line: reason`."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def hashes(self) -> Hashes:
        """(n, columns) equal for equal texts."""
        return self.texts.hashes[self.cells]

    def batch(self, rows: Rows) -> Batch:
        cells = self.cells[rows]
        columns = tuple(self.texts.pick(column) for column in cells.T)
        return Batch(columns, None if self.labels is None else self.labels[rows])

    def fingerprint(self) -> str:
        digest = hashlib.sha256("\x1f".join([*self.roles, "", *self.classes]).encode())
        digest.update(self.texts.digest)
        digest.update(np.ascontiguousarray(self.cells).data)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def with_classes(self, classes: Sequence[str]) -> TableExamples:
        """The same rows, their labels numbered as in `classes`, which must hold every class of these rows."""
        missing = [name for name in self.classes if name not in classes]
        if missing or self.labels is None:
            raise InputError(f"{self.name}: the label {missing[:1]} is none of {', '.join(classes)}")
        places = np.array([list(classes).index(name) for name in self.classes], dtype=np.int64)
        return replace(self, labels=places[self.labels], classes=tuple(classes))

    def with_labels(self, labels: NDArray[Any]) -> TableExamples:
        """The same rows with other labels, such as what a teacher says of them."""
        if len(labels) != len(self):
            raise InputError(f"{len(labels)} labels for {len(self)} rows of {self.name}")
        return replace(self, labels=labels, classes=(), score_range=None)

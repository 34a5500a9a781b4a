"""Commits where no lock keeps writers apart: the first wins, the others look again.

Lance puts two appends one after the other without asking, so two writers could add the same document. `Merge`, which
names all fragments of the new version, conflicts with every other change of rows: what was checked in the version
that it was made from still holds when it is committed.
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.index.lance.view import Positions, View

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(eq=False)
class Added:
    """Rows on their way into a table. Their files are written once, however often the commit is tried."""

    table: pa.Table
    fragments: list[Any] | None = None

    def written(self, dataset: Any) -> list[Any]:  # noqa: ANN401 - lance has no types
        from lance.fragment import write_fragments

        if self.fragments is None:
            self.fragments = write_fragments(self.table, dataset, mode="append")
        return self.fragments

    def arrived(self, view: View) -> bool:
        """They are in this version: an answer that got lost on the way was a yes."""
        if self.fragments is None or not len(self.table):
            return False
        return bool(np.any((view.stamp == self.table["stamp"][0].as_py()) & view.live))


def merged(view: View, removed: Positions, added: Added | None, options: dict[str, str] | None) -> Any:  # noqa: ANN401
    """The operation that makes the rows of the view without `removed` and with `added`."""
    from lance import LanceOperation

    dataset = view.dataset
    new = added.written(dataset) if added is not None else []
    fragments = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
    first = _unused(dataset, fragments)
    for number, rows in view.by_fragment(removed):
        fragment = dataset.get_fragment(number)
        fragments[number] = fragment.delete_rows(rows) or _emptied(dataset, fragment, options)
    named = [replace(each, id=first + place) for place, each in enumerate(new)]
    return LanceOperation.Merge([*fragments.values(), *named], dataset.lance_schema)


def _emptied(dataset: Any, fragment: Any, options: dict[str, str] | None) -> Any:  # noqa: ANN401
    """The fragment without any row. `Merge` may not leave it out; Lance does when it sees that all rows are gone."""
    import pyarrow as pa
    from lance.file import LanceFileSession
    from lance.fragment import DeletionFile

    rows, number = fragment.physical_rows, secrets.randbits(62)
    about = {
        "read_version": dataset.version,
        "id": number,
        "file_type": "array",
        "num_deleted_rows": rows,
        "base_id": None,
    }
    deletions = DeletionFile(**about)
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    every = pa.table([pa.array(np.arange(rows, dtype=np.uint32))], schema=schema)
    with tempfile.TemporaryDirectory(prefix="gemel-") as folder:
        file = Path(folder, "rows.arrow")
        with pa.ipc.new_file(str(file), schema) as out:
            out.write_table(every)
        session = LanceFileSession(dataset.uri, storage_options=options)
        session.upload_file(str(file), deletions.path(fragment.fragment_id))
    return replace(fragment.metadata, deletion_file=deletions)


def _unused(dataset: Any, fragments: dict[int, Any]) -> int:  # noqa: ANN401
    """A number that no fragment has, nor one that is gone but which an index still knows."""
    known: list[int] = [
        number
        for index in dataset.describe_indices()
        for part in index.segments
        for number in part.fragment_ids
    ]
    return max([-1, *fragments, *known]) + 1

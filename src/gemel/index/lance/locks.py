"""What stands for a lock in a bucket: marks in the configuration of a table, which Lance commits by compare-and-swap.

Writers commit with an operation that conflicts with every other (see `optimistic.py`). So whoever has set a mark and
then committed such an operation knows: nobody writes any more without having seen the mark.

Commits where no lock keeps writers apart: the first wins, the others look again.

Lance puts two appends one after the other without asking, so two writers could add the same document. `Merge`, which
names all fragments of the new version, conflicts with every other change of rows: what was checked in the version
that it was made from still holds when it is committed.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gemel.errors import GemelError, WorkError
from gemel.index.lance.recovery import READ_ERRORS, first_line, panics_raised
from gemel.index.lance.view import Positions, View

if TYPE_CHECKING:
    import pyarrow as pa

_HELD, _MOVED, _BUILDER = "gemel.held", "gemel.moved", "gemel.builder"

_STALE = 600  # seconds after which whoever held something is taken for dead

PATIENCE = 60.0
"""Seconds for which a write is repeated while others are faster."""

Result = TypeVar("Result")


class Preempted(WorkError):
    """Another writer was faster, where no lock keeps writers apart: look again and repeat."""


def repeated(work: Callable[[], Result]) -> Result:
    """Until no other writer was faster."""
    end, wait = time.monotonic() + PATIENCE, 0.01
    while True:
        try:
            return work()
        except Preempted:
            if time.monotonic() > end:
                raise
            time.sleep(wait * random.random())
            wait = min(2 * wait, 0.5)


@contextmanager
def said(place: str, then: str = "Nothing was changed") -> Iterator[None]:
    """Errors of Lance and of the disk become a WorkError that names the place."""
    from lance.commit import CommitConflictError

    try:
        with panics_raised():
            yield
    except GemelError:
        raise
    except READ_ERRORS as error:
        line = first_line(error)
        if (
            isinstance(error, CommitConflictError)
            or "commit conflict" in line
            or "Incompatible trans" in line
        ):
            raise Preempted(f"others kept writing to {place} at the same time. {then}; try again") from error
        raise WorkError(
            f"could not write to {place}: {line}. {then}; check rights and space, then try again"
        ) from error


def check_open(dataset: Any, place: str) -> None:  # noqa: ANN401 - lance has no types
    """May be written to: neither replaced by another table nor held by somebody who is about to."""
    config = dataset.config()
    if config.get(_MOVED):
        raise WorkError(
            f"the index {place} was migrated to another model meanwhile. Open it again, then repeat this"
        )
    mark = config.get(_HELD, "")
    if mark and not _fresh(mark):  # left by who died; were it only slow, it would find its mark gone
        with said(place):
            dataset.checkout_version(dataset.version).update_config({_HELD: ""})
    if mark:
        raise Preempted(
            f"another process is about to switch {place} to another model. Open it again in a minute"
        )


@contextmanager
def held(opened: Callable[[], Any], place: str, token: str) -> Iterator[None]:
    """Nobody writes to the table; `opened` gives its newest version."""

    def hold() -> None:
        dataset = opened()
        check_open(dataset, place)
        with said(place):
            dataset.update_config({_HELD: _mark(token)})

    def wall() -> None:
        from lance import LanceDataset, LanceOperation

        dataset = opened()
        same = LanceOperation.Merge([each.metadata for each in dataset.get_fragments()], dataset.lance_schema)
        with said(place):
            LanceDataset.commit(dataset, same, read_version=dataset.version)

    repeated(hold)
    try:
        repeated(wall)
        yield
    finally:
        with suppress(GemelError, OSError, ValueError, RuntimeError):  # moved and dropped, or out of reach
            dataset = opened()
            if _owner(dataset.config().get(_HELD, "")) == token and not dataset.config().get(_MOVED):
                dataset.update_config({_HELD: ""})


def move(opened: Callable[[], Any], place: str, token: str, number: int) -> None:
    """The table is replaced by the one of this number, if whoever has `token` still holds it."""
    dataset = opened()
    if _owner(dataset.config().get(_HELD, "")) != token:
        raise WorkError(
            f"{place} was held too long and others wrote meanwhile. Nothing was switched; try again"
        )
    with said(place, "Nothing was switched"):
        dataset.update_config({_HELD: _mark(token), _MOVED: str(number)})


def claim(opened: Callable[[], Any], place: str, token: str) -> None:
    """The table that is being built is built by `token` alone; WorkError while another is at it."""
    dataset = opened()
    builder = _owner(dataset.config().get(_BUILDER, ""))
    if builder not in ("", token) and time.time() - _last_write(dataset) < _STALE:
        raise WorkError(
            f"another process is migrating {place}. Wait for it; if it died, try again in {_STALE // 60} minutes"
        )
    with said(place):
        dataset.update_config({_BUILDER: _mark(token)})


def release(opened: Callable[[], Any], token: str) -> None:
    """Others may go on with the table that was being built."""
    with suppress(GemelError, OSError, ValueError, RuntimeError):
        dataset = opened()
        if _owner(dataset.config().get(_BUILDER, "")) == token:
            dataset.update_config({_BUILDER: ""})


def builds(dataset: Any, token: str) -> bool:  # noqa: ANN401
    return _owner(dataset.config().get(_BUILDER, "")) == token


def _last_write(dataset: Any) -> float:  # noqa: ANN401
    return float(dataset.versions()[-1]["timestamp"].timestamp())


def _mark(token: str) -> str:
    return f"{token} {time.time():.0f}"


def _owner(mark: str) -> str:
    return mark.partition(" ")[0]


def _fresh(mark: str) -> bool:
    since = mark.partition(" ")[2]
    return bool(since) and time.time() - float(since) < _STALE


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

"""The dataset of one table: the newest version as a view, and commits on top of it, on disk when they return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemel.errors import GemelError, WorkError
from gemel.index.lance.columns import schema_of
from gemel.index.lance.disk import Synced
from gemel.index.lance.locks import Added, Preempted, check_open, merged, said
from gemel.index.lance.recovery import (
    READ_ERRORS,
    GoodVersion,
    first_line,
    open_last_good,
    panics_raised,
    refused,
    set_aside,
    torn,
    versions_in,
)
from gemel.index.lance.view import Positions, View, look
from gemel.index.port import Header

if TYPE_CHECKING:
    import pyarrow as pa


def same_rows(one: View, other: View) -> bool:
    """Positions mean the same in both: the one is the other restored under a new number."""
    return [(p.fragment, p.rows, p.deletions) for p in one.pieces] == [
        (p.fragment, p.rows, p.deletions) for p in other.pieces
    ]


class Versions:
    """Safe to use from several threads; writers are serialised by the table above it."""

    def __init__(
        self,
        uri: str,
        place: str,
        *,
        durable: bool,
        options: dict[str, str] | None,
        start: View | None = None,
    ) -> None:
        """`start`: the newest version, if it is known without opening it."""
        self._uri, self._place, self._options = uri, place, options
        self._lock = threading.Lock()
        self._shared = "://" in uri
        """No lock keeps other writers out."""
        self._synced = Synced(Path(uri)) if durable and not self._shared else None
        with reading(place):
            good = open_last_good(uri, options, place) if start is None else GoodVersion(start, start.version)
        self._view, self._good, self._lost = good.view, good.newest, good.lost
        """`_good`: newest version when we looked; greater than the view's own where that one could not be read."""

    @staticmethod
    def create(uri: str, header: Header, options: dict[str, str] | None) -> None:
        """An empty table."""
        import lance

        schema = schema_of(header)
        with said(uri):
            if "://" not in uri:
                lance.write_dataset(schema.empty_table(), uri, mode="create")
                return
            # Of two that write with mode="create" at once the second overwrites; without a retry it is refused.
            empty = lance.LanceOperation.Overwrite(schema, [])
            lance.LanceDataset.commit(uri, empty, storage_options=options, max_retries=0)

    def newest(self) -> View:
        """As it is now, writes of other processes included."""
        with reading(self._place):
            view = self._view
            if self._latest(view) == self._good:
                return view
            with self._lock:
                newest = self._latest(self._view)
                if newest != self._good:
                    self._adopt(self._at(newest))
                return self._view

    def _latest(self, view: View) -> int:
        """The number of the newest version."""
        if view.opened or self._shared:
            return int(view.dataset.latest_version)
        numbers = versions_in(Path(self._uri))
        if not numbers:
            raise OSError(f"{self._uri} holds no table")
        return numbers[0]

    def commit(self, seen: View, removed: Positions, added: Added | None) -> View:
        """One new version without the rows of `removed` and with those of `added`, which were found in `seen`."""
        from lance import LanceDataset, LanceOperation

        view = self._writable()
        if view.version != seen.version and not same_rows(view, seen):
            raise Preempted(f"others write to {self._place} at the same time. Nothing was changed; try again")
        dataset = view.dataset
        if self._shared:
            with said(self._place):
                operation: Any = merged(view, removed, added, self._options)
                LanceDataset.commit(dataset, operation, read_version=dataset.version)
            return self._finished()
        with said(self._place):
            new = added.written(dataset) if added is not None else []
            updated, emptied = [], []
            for fragment, rows in view.by_fragment(removed):
                left = dataset.get_fragment(fragment).delete_rows(rows)
                (emptied.append(fragment) if left is None else updated.append(left))
            self.sync()  # what a version names is on disk before the version is
            if not len(removed):
                operation = LanceOperation.Append(new)
            elif not new:
                operation = LanceOperation.Delete(updated, emptied, "by row")
            else:
                operation = LanceOperation.Update(emptied, updated, new)
            LanceDataset.commit(dataset, operation, read_version=dataset.version)
        return self._finished()

    def change(self, work: Callable[[Any], object]) -> View:
        """A commit, or several, that Lance makes itself on the dataset it is given: new columns, compaction."""
        view = self._writable()
        with said(self._place):
            work(view.dataset.checkout_version(view.version))
        return self._finished()

    def add_columns(self, columns: Mapping[str, pa.DataType]) -> View:
        """All null, in one commit."""
        import pyarrow as pa

        fields = [pa.field(name, kind) for name, kind in columns.items()]
        return self.change(lambda dataset: dataset.add_columns(fields))

    def _writable(self) -> View:
        view = self.recovered()
        if self._shared:
            check_open(view.dataset, self._place)
        return view

    def recovered(self) -> View:
        """The newest view; where it is not the newest version, what could not be read is out of the way."""
        view = self.newest()
        if view.version != self._good and self._lost is not None:
            raise refused(self._lost, self._place)
        return self.give_up()

    def give_up(self) -> View:
        """The newest view, made the newest version if it is not: what comes after it is given up."""
        view = self.newest()
        with self._lock:
            if view.version == self._good:
                return view
            with said(self._place):
                try:
                    dataset = view.dataset.checkout_version(view.version)
                    dataset.restore()  # version n + 1 is what the last good one was
                except (ValueError, OSError):  # the newest manifest is torn: Lance cannot go on behind it
                    table = Path(self._uri)
                    set_aside(table, [each for each in versions_in(table) if each > view.version])
            self._adopt(open_last_good(self._uri, self._options, self._place))
            return self._view

    def reopen(self) -> View:
        """What is on disk now, whatever was seen before."""
        with self._lock, reading(self._place):
            self._adopt(open_last_good(self._uri, self._options, self._place))
            return self._view

    def sync(self) -> None:
        if self._synced is not None:
            self._synced.catch_up()

    def _finished(self) -> View:
        with said(self._place, "The change is visible but perhaps not on disk"):
            self.sync()
        return self.newest()

    def _at(self, number: int) -> GoodVersion:
        try:
            dataset = self._view.dataset.checkout_version(number)
            known = {piece.fragment for piece in self._view.pieces}
            fresh = any(fragment.fragment_id not in known for fragment in dataset.get_fragments())
            if not fresh or torn(dataset, self._uri) is None:
                with panics_raised():
                    return GoodVersion(look(dataset, self._view, self._place), number)
        except READ_ERRORS:
            pass
        return open_last_good(self._uri, self._options, self._place, self._view)

    def _adopt(self, good: GoodVersion) -> None:
        self._view, self._good, self._lost = good.view, good.newest, good.lost


@contextmanager
def reading(place: str) -> Iterator[None]:
    """What goes wrong in here is that the files are not as they were."""
    try:
        with panics_raised():
            yield
    except GemelError:
        raise
    except READ_ERRORS as error:
        raise WorkError(
            f"could not read {place}: {first_line(error)}. If it was migrated or replaced, open it again; "
            f"if a file is damaged: gemel index repair {place}"
        ) from error

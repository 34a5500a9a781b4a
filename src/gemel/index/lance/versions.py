"""The versions of one table: the newest as a view, commits on top of it, and locks where there are no file locks.

In a folder the caller has a file lock. In a bucket the first commit wins and the other writers repeat theirs. Lance
accepts two appends at once, so two writers could add the same document; `Merge`, which names all fragments of the new
version, conflicts with every other change of rows, so what was checked in the version that it was made from is still
true when it is committed. A lock is an entry in the configuration of the table, which Lance commits by
compare-and-swap: after the entry and one more `Merge`, no writer can commit without having seen the entry.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.errors import GemelError, InputError, WorkError
from gemel.index.lance.columns import has_header, header_of, kind_column, schema_of
from gemel.index.lance.recovery import (
    READ_ERRORS,
    GoodVersion,
    Preempted,
    RecoveredWarning,
    Synced,
    first_line,
    open_dataset,
    open_last_good,
    panics_raised,
    reading,
    refused,
    repeated,
    set_aside,
    torn,
    torn_fragment,
    versions_in,
    write_errors,
)
from gemel.index.lance.view import Positions, View, read_view
from gemel.index.port import Header

if TYPE_CHECKING:
    import pyarrow as pa

_LOCKED, _MOVED, _BUILDER = "gemel.held", "gemel.moved", "gemel.builder"

_STALE = 600  # seconds after which the owner of a lock is considered dead

_BATCH = 1024  # rows that `repair_rows` reads at once


class Versions:
    """Safe with several threads; the table above it lets one writer in at a time."""

    def __init__(
        self,
        uri: str,
        location: str,
        *,
        durable: bool,
        options: dict[str, str] | None,
        start: View | None = None,
    ) -> None:
        """`start`: the newest version, if it is known without opening it."""
        self._uri, self._location, self._options = uri, location, options
        self._lock = threading.Lock()
        self._shared = "://" in uri
        """In a bucket: no lock keeps other writers out."""
        self._synced = Synced(Path(uri)) if durable and not self._shared else None
        with reading(location):
            good = (
                open_last_good(uri, options, location) if start is None else GoodVersion(start, start.version)
            )
        self._view, self._good, self._lost = good.view, good.newest, good.lost
        """`_good`: the newest version when it was read last; greater than the view's own if that could not be read."""

    @staticmethod
    def create(uri: str, header: Header, options: dict[str, str] | None) -> None:
        """An empty table."""
        import lance

        schema = schema_of(header)
        with write_errors(uri):
            if "://" not in uri:
                lance.write_dataset(schema.empty_table(), uri, mode="create")
                return
            # Of two that write with mode="create" at once the second overwrites; without a retry it is refused.
            empty = lance.LanceOperation.Overwrite(schema, [])
            lance.LanceDataset.commit(uri, empty, storage_options=options, max_retries=0)

    def newest(self) -> View:
        """The current view, with the writes of other processes."""
        with reading(self._location):
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
        """Commit a version without the rows of `removed`, which are positions in `seen`, and with those of `added`."""
        from lance import LanceDataset, LanceOperation

        view = self._writable()
        if view.version != seen.version and not same_rows(view, seen):
            raise Preempted(
                f"others write to {self._location} at the same time. Nothing was changed; try again"
            )
        dataset = view.dataset
        if self._shared:
            with write_errors(self._location):
                operation: Any = merged(view, removed, added, self._options)
                LanceDataset.commit(dataset, operation, read_version=dataset.version)
            return self._finished()
        with write_errors(self._location):
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
        with write_errors(self._location):
            work(view.dataset.checkout_version(view.version))
        return self._finished()

    def drop_column(self, seen: View, column: str, rows: Positions, digests: Sequence[str]) -> View:
        """Commit a version without a column, and with other digests of some rows; `rows` are positions in `seen`."""
        import pyarrow as pa
        from lance import LanceDataset, LanceOperation

        view = self._writable()
        if view.version != seen.version and not same_rows(view, seen):
            raise Preempted(
                f"others write to {self._location} at the same time. Nothing was changed; try again"
            )
        dataset = view.dataset
        addresses, given = view.addresses(rows), np.array(digests, dtype=object)
        fragments = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
        schema = pa.schema([pa.field("_rowid", pa.uint64()), pa.field("digest", pa.string(), nullable=False)])
        with write_errors(self._location):
            for number in np.unique(addresses >> np.uint64(32)).tolist():
                inside = (addresses >> np.uint64(32)) == number
                cells = [pa.array(addresses[inside]), pa.array(given[inside].tolist(), pa.string())]
                changed = pa.table(cells, schema=schema)
                fragments[number] = dataset.get_fragment(number).update_columns(changed)[0]
            self.sync()
            # Of all changes that Lance knows, only this one takes changed rows and other columns in one commit.
            operation = LanceOperation.Merge(list(fragments.values()), _without(dataset.lance_schema, column))
            LanceDataset.commit(dataset, operation, read_version=dataset.version)
        return self._finished()

    def _writable(self) -> View:
        view = self.recovered()
        if self._shared:
            check_open(view.dataset, self._location)
        return view

    def recovered(self) -> View:
        """The newest view, made the newest version; WorkError if acknowledged writes cannot be read."""
        view = self.newest()
        if view.version != self._good and self._lost is not None:
            raise refused(self._lost, self._location)
        return self.give_up()

    def give_up(self) -> View:
        """The newest readable view, made the newest version: later ones are given up."""
        view = self.newest()
        with self._lock:
            if view.version == self._good:
                return view
            with write_errors(self._location):
                try:
                    dataset = view.dataset.checkout_version(view.version)
                    dataset.restore()  # version n + 1 is what the last good one was
                except (ValueError, OSError):  # the newest manifest is torn: Lance cannot commit after it
                    table = Path(self._uri)
                    set_aside(table, [each for each in versions_in(table) if each > view.version])
            self._adopt(open_last_good(self._uri, self._options, self._location))
            return self._view

    def reopen(self) -> View:
        """Read again what is on disk now."""
        with self._lock, reading(self._location):
            self._adopt(open_last_good(self._uri, self._options, self._location))
            return self._view

    def sync(self) -> None:
        if self._synced is not None:
            self._synced.catch_up()

    def _finished(self) -> View:
        with write_errors(self._location, "The change is visible but perhaps not on disk"):
            self.sync()
        return self.newest()

    def _at(self, number: int) -> GoodVersion:
        try:
            dataset = self._view.dataset.checkout_version(number)
            known = {fragment.number for fragment in self._view.fragments}
            fresh = any(fragment.fragment_id not in known for fragment in dataset.get_fragments())
            if not fresh or torn(dataset, self._uri) is None:
                with panics_raised():
                    return GoodVersion(read_view(dataset, self._view, self._location), number)
        except READ_ERRORS:
            pass
        return open_last_good(self._uri, self._options, self._location, self._view)

    def _adopt(self, good: GoodVersion) -> None:
        self._view, self._good, self._lost = good.view, good.newest, good.lost


def same_rows(one: View, other: View) -> bool:
    """Whether positions mean the same in both: one is the other restored under a new number."""
    return [(each.number, each.rows, each.deletions) for each in one.fragments] == [
        (each.number, each.rows, each.deletions) for each in other.fragments
    ]


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
        """Whether they are in this version: the commit succeeded although its answer was lost."""
        if self.fragments is None or not len(self.table):
            return False
        return bool(np.any((view.stamp == self.table["stamp"][0].as_py()) & view.live))


def merged(view: View, removed: Positions, added: Added | None, options: dict[str, str] | None) -> Any:  # noqa: ANN401
    """The operation that makes a version of the view without `removed` and with `added`."""
    from lance import LanceOperation

    dataset = view.dataset
    new = added.written(dataset) if added is not None else []
    fragments = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
    first = _unused(dataset, fragments)
    for number, rows in view.by_fragment(removed):
        fragment = dataset.get_fragment(number)
        fragments[number] = fragment.delete_rows(rows) or _emptied(dataset, fragment, options)
    named = [replace(each, id=first + n) for n, each in enumerate(new)]
    return LanceOperation.Merge([*fragments.values(), *named], dataset.lance_schema)


def _emptied(dataset: Any, fragment: Any, options: dict[str, str] | None) -> Any:  # noqa: ANN401
    """The fragment without any row. `Merge` may not leave it out; Lance does when it sees that all rows are gone."""
    import pyarrow as pa
    from lance.file import LanceFileSession
    from lance.fragment import DeletionFile

    rows, number = fragment.physical_rows, secrets.randbits(62)
    deletions = DeletionFile(
        read_version=dataset.version, id=number, file_type="array", num_deleted_rows=rows, base_id=None
    )
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
    """A number that no fragment has, nor a deleted one that an index still refers to."""
    known: list[int] = [
        number
        for index in dataset.describe_indices()
        for part in index.segments
        for number in part.fragment_ids
    ]
    return max([-1, *fragments, *known]) + 1


def _without(schema: Any, column: str) -> Any:  # noqa: ANN401
    """The schema without a column; the others keep their ids, by which Lance finds them in its files."""
    # One entry per column, each followed by those of its elements.
    make, (about, *encoded) = schema.__reduce__()
    kept: list[bytes] = []
    start = 0
    for field in schema.fields():
        end = start + _nested(field)
        kept += [] if field.name() == column else encoded[start:end]
        start = end
    return make(about, *kept)


def _nested(field: Any) -> int:  # noqa: ANN401
    return 1 + sum(_nested(child) for child in field.children())


def check_open(dataset: Any, location: str) -> None:  # noqa: ANN401 - lance has no types
    """An error if the table was replaced by another or is locked by a process that is about to replace it."""
    config = dataset.config()
    if config.get(_MOVED):
        raise WorkError(
            f"the index {location} was migrated to another model meanwhile. Open it again, then repeat this"
        )
    entry = config.get(_LOCKED, "")
    if entry and not _fresh(entry):  # its owner died; if it is only slow, it will find its entry removed
        with write_errors(location):
            dataset.checkout_version(dataset.version).update_config({_LOCKED: ""})
    if entry:
        raise Preempted(
            f"another process is about to switch {location} to another model. Open it again in a minute"
        )


@contextmanager
def exclusive(opened: Callable[[], Any], location: str, token: str) -> Iterator[None]:
    """No other process writes to the table inside the block; `opened` gives its newest version."""

    def acquire() -> None:
        dataset = opened()
        check_open(dataset, location)
        with write_errors(location):
            dataset.update_config({_LOCKED: _entry(token)})

    def barrier() -> None:
        from lance import LanceDataset, LanceOperation

        dataset = opened()
        same = LanceOperation.Merge([each.metadata for each in dataset.get_fragments()], dataset.lance_schema)
        with write_errors(location):
            LanceDataset.commit(dataset, same, read_version=dataset.version)

    repeated(acquire)
    try:
        repeated(barrier)
        yield
    finally:
        with suppress(GemelError, OSError, ValueError, RuntimeError):  # moved and dropped, or out of reach
            dataset = opened()
            if _owner(dataset, _LOCKED) == token and not dataset.config().get(_MOVED):
                dataset.update_config({_LOCKED: ""})


def move(opened: Callable[[], Any], location: str, token: str, number: int) -> None:
    """Record that the table is replaced by the one of this number, if `token` still has the lock."""
    dataset = opened()
    if _owner(dataset, _LOCKED) != token:
        raise WorkError(
            f"{location} was locked too long and others wrote meanwhile. Nothing was switched; try again"
        )
    with write_errors(location, "Nothing was switched"):
        dataset.update_config({_LOCKED: _entry(token), _MOVED: str(number)})


def claim(opened: Callable[[], Any], location: str, token: str) -> None:
    """Only `token` may build this table; WorkError while another process is building it."""
    dataset = opened()
    builder = _owner(dataset, _BUILDER)
    if builder not in ("", token):
        last_write = dataset.versions()[-1]["timestamp"].timestamp()
        if time.time() - last_write < _STALE:
            raise WorkError(
                f"another process is migrating {location}. Wait for it; if it died, try again in {_STALE // 60} minutes"
            )
    with write_errors(location):
        dataset.update_config({_BUILDER: _entry(token)})


def release(opened: Callable[[], Any], token: str) -> None:
    """Other processes may continue to build the table."""
    with suppress(GemelError, OSError, ValueError, RuntimeError):
        dataset = opened()
        if _owner(dataset, _BUILDER) == token:
            dataset.update_config({_BUILDER: ""})


def builds(dataset: Any, token: str) -> bool:  # noqa: ANN401
    return _owner(dataset, _BUILDER) == token


def _entry(token: str) -> str:
    return f"{token} {time.time():.0f}"


def _owner(dataset: Any, lock: str) -> str:  # noqa: ANN401
    return str(dataset.config().get(lock, "")).partition(" ")[0]


def _fresh(entry: str) -> bool:
    since = entry.partition(" ")[2]
    return bool(since) and time.time() - float(since) < _STALE


def repair_rows(versions: Versions, uri: str, location: str) -> list[str]:
    """Keep the newest version without its unreadable fragments, unless the last good one has more passages.

    Returns what was done; nothing is done to an undamaged table."""
    if "://" in uri:
        return []
    table = Path(uri)
    done = _set_aside_unreadable(table, versions)
    newest = open_dataset(uri, None)
    bad = {each.fragment_id: why for each in newest.get_fragments() if (why := _fault(each, uri))}
    if not bad:
        return done
    kept = sum(each.metadata.num_rows for each in newest.get_fragments() if each.fragment_id not in bad)
    every = sum(each.metadata.num_rows for each in newest.get_fragments())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecoveredWarning)  # the report says it
        view = versions.newest()
        reason = next(iter(bad.values()))
        if view.version != newest.version and view.passages > kept:
            older = versions.give_up()
            what = f"went back to the version of {older.passages:,} passages; the newest had {every:,} ({reason})"
            return [*done, what]
        _drop(newest, list(bad), location)
        versions.newest()
    return [*done, f"gave up {every - kept:,} of {every:,} passages, in {len(bad)} damaged files ({reason})"]


def described(uri: str, options: dict[str, str] | None) -> str:
    """One line about a table, so that a person can choose one of several."""
    try:
        dataset = open_dataset(uri, options)
        bound = header_of(dataset.schema, uri).bound
        last = dataset.versions()[-1]["timestamp"].isoformat(" ", "seconds")
        rows = sum(each.metadata.num_rows for each in dataset.get_fragments())
    except READ_ERRORS as error:
        return f"cannot be read ({first_line(error)})"
    return f"{rows:,} passages of {bound.get('model') or 'no model'}, written last at {last}"


def restore_header(uri: str, header: Header) -> list[str]:
    """Write the header into a table that has lost it; nothing is done to one that has it."""
    dataset = open_dataset(uri, None if "://" not in uri else {})
    if has_header(dataset.schema):
        return []
    wanted = schema_of(header)
    there = dataset.schema
    if others := [
        name for name in there.names if name.startswith(kind_column("")) and name not in wanted.names
    ]:
        raise InputError(
            f"{uri} does not say which models made it, and it has several kinds of vectors ({', '.join(others)}). "
            "Restore a snapshot, or build the index again"
        )
    if any(
        name not in there.names or there.field(name).type != wanted.field(name).type for name in wanted.names
    ):
        raise InputError(
            f"{uri} does not say which model made it, and its columns are not those of an index with vectors of "
            f"{header.dim} numbers. Give the model that made it"
        )
    about = {key.decode(): value.decode() for key, value in wanted.metadata.items()}
    dataset.update_schema_metadata(about, replace=True)
    return ["wrote again which model made the table"]


def _set_aside_unreadable(table: Path, versions: Versions) -> list[str]:
    """Move unreadable manifests away: the newest would block every commit, old ones every clean-up."""
    numbers = versions_in(table)
    bad = [number for number in numbers if number != versions.newest().version and _unreadable(table, number)]
    if not bad:
        return []
    set_aside(table, bad)
    versions.reopen()
    return [
        f"set aside {len(bad)} of {len(numbers)} manifests that cannot be read, in {table.parent / 'damaged'}"
    ]


def _unreadable(table: Path, number: int) -> bool:
    try:
        found = open_dataset(str(table), None, number)
        return not found.schema.metadata or found.version != number
    except READ_ERRORS:
        return True


def _fault(fragment: Any, uri: str) -> str | None:  # noqa: ANN401 - lance has no types
    """Why not all rows of a fragment can be read; None: every byte was."""
    if (reason := torn_fragment(fragment, uri)) is not None:
        return reason
    try:
        with panics_raised():
            for _ in fragment.scanner(batch_size=_BATCH).to_batches():
                pass
    except READ_ERRORS as error:
        return first_line(error)
    return None


def _drop(dataset: Any, fragments: list[int], location: str) -> None:  # noqa: ANN401
    from lance import LanceDataset, LanceOperation

    with write_errors(location):
        LanceDataset.commit(
            dataset, LanceOperation.Delete([], fragments, "damaged"), read_version=dataset.version
        )

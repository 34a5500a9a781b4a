"""Snapshots: a copy of an index as it is at one moment, in a folder, while it is in use; and back to any location.

A snapshot is an index. It is made under a hidden name and renamed at the end, so a folder of its name is complete or
absent. An index in a folder is copied file by file, others row by row; either way with digests, vectors and the record
of the model, so the copy answers as the original does.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from gemel.errors import InputError, WorkError
from gemel.files.atomic import sync, sync_tree
from gemel.index.port import Header, PassageRows, Store, Table
from gemel.terminal import counted
from gemel.types import ShownResult

if TYPE_CHECKING:
    from gemel.index.lance.store import LanceStore

_BLOCK = 16_384  # passages per commit of a copy


@dataclass(frozen=True)
class SnapshotResult(ShownResult):
    """What a snapshot or a restore wrote."""

    location: str
    documents: int
    passages: int
    bytes: int
    seconds: float

    def summary(self) -> str:
        """One line for a person."""
        count = f"{counted(self.documents, 'document')}, {counted(self.passages, 'passage')}"
        return f"{count}, {self.bytes / 1e6:,.1f} MB in {self.seconds:.1f} s"


def write_snapshot(table: Table, folder: str | Path) -> SnapshotResult:
    """Copy a table to a new index in a folder that is not there yet, or empty."""
    if "://" in str(folder) or str(folder) == ":memory:":
        raise InputError(
            f"a snapshot is written to a folder, not to {folder}. To copy an index there: gemel.restore_index"
        )
    from gemel.index.lance.store import LanceStore

    started = perf_counter()
    target = Path(folder).expanduser().absolute()
    with _new_folder(target, str(folder)) as working:
        store = LanceStore(working, durable=False)  # synced as a whole at the end
        try:
            _fill(store, table)
            with closing(store.open()) as copy:
                stats = copy.stats()
        finally:
            store.close()
    return SnapshotResult(str(folder), stats.documents, stats.passages, stats.bytes, perf_counter() - started)


def restore_to(table: Table, store: Store) -> SnapshotResult:
    """Copy a table to a store that has no index yet, or an empty one of the same model."""
    started = perf_counter()
    folder: Path | None = getattr(store, "folder", None)
    if folder is not None:
        return write_snapshot(table, folder)
    with table.frozen(_BLOCK) as (header, blocks):
        _prepare(store, header)
        with closing(store.begin(header)) as copy:
            _write(copy, blocks)
            copy.compact()
    with store.writing():
        _check_empty(store, header)
        new = store.switch()
    with closing(new):
        stats = new.stats()
    return SnapshotResult(store.name, stats.documents, stats.passages, stats.bytes, perf_counter() - started)


def _fill(store: LanceStore, table: Table) -> None:
    from gemel.index.lance.table import LanceTable

    if isinstance(table, LanceTable) and table.in_folder:
        store.adopt(table)
        return
    with table.frozen(_BLOCK) as (header, blocks), closing(store.create(header)) as copy:
        _write(copy, blocks)


def _write(copy: Table, blocks: Iterator[PassageRows]) -> None:
    for rows in blocks:
        copy.write(rows, replace=False)


@contextmanager
def _new_folder(target: Path, name: str) -> Iterator[Path]:
    """A hidden folder beside `target` to fill, which is renamed at the end; nothing is overwritten."""
    _check_free(target, name)
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield working
        sync_tree(working)
        _check_free(target, name)
        if target.exists():
            (target / "lock").unlink(missing_ok=True)
            target.rmdir()
        working.rename(target)
        sync(target.parent)
    except OSError as error:
        raise WorkError(
            f"{name} could not be written: {error.strerror or error}. Nothing was changed"
        ) from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _check_free(target: Path, name: str) -> None:
    """`drop_index` leaves a lock file in a folder; anything else is someone's."""
    taken = target.exists() or target.is_symlink()
    if taken and (not target.is_dir() or any(each.name != "lock" for each in target.iterdir())):
        raise InputError(f"{name} is there already, and nothing is overwritten. Name a new folder")


def _prepare(store: Store, header: Header) -> None:
    """An empty index at the store, without the rest of an earlier copy that was stopped."""
    if store.exists():
        _check_empty(store, header)
    else:
        store.create(header).close()
    store.abandon()


def _check_empty(store: Store, header: Header) -> None:
    with closing(store.open()) as current:
        if current.count().documents or not current.header.same_vectors(header):
            raise InputError(
                f"there is an index at {store.name} already, and nothing is overwritten. Name another location, or "
                "drop that index first"
            )

"""`repair` of one table: readable rows are kept, unreadable ones are dropped and reported."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from gemel.index.lance import cache
from gemel.index.lance.columns import has_header, header_of, schema_of
from gemel.index.lance.recovery import (
    READ_ERRORS,
    RecoveredWarning,
    first_line,
    open_dataset,
    panics_raised,
    set_aside,
    torn_fragment,
    versions_in,
)
from gemel.index.lance.versions import Versions, write_errors
from gemel.index.port import Header

_BATCH = 1024


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


def repair_cache(folder: Path, table: str) -> list[str]:
    """Delete damaged and unfinished caches; the next search builds one."""
    done = []
    with cache.building(folder):
        cache.drop_unfinished(folder, table)
        if wrong := cache.faults(folder, table):
            for path in folder.glob(f"{table}-*"):
                shutil.rmtree(path, ignore_errors=True)
            done.append(f"dropped what was built for search: {wrong[0]}")
    return done


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

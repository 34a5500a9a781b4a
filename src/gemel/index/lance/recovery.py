"""Lance datasets and their files: opened at the last good version, synced; refused in forked processes.

A kill leaves no torn file, as Lance makes a version visible by one rename. A power cut may: the manifest or a data
file of the newest version, which was not acknowledged unless the disk lost synced data. Such a version is skipped with
a warning. If more than the newest version cannot be read, a file of an acknowledged write is damaged: the table can be
read at its last good version, and is written to only after `repair`.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from gemel.errors import GemelError, InputError, WorkError
from gemel.files.atomic import sync
from gemel.index.lance.columns import has_header
from gemel.index.lance.view import View, read_view

PATIENCE = 60.0
"""Seconds for which a write is repeated while others are faster."""
_NAMES_FROM = 2**64 - 1  # Lance names a version's file by its distance from here: the newest is listed first
_METADATA_CACHE = 64 << 20  # bytes; Lance's own 1 GB would fill up with what old versions needed
_INDEX_CACHE = 512 << 20
READ_ERRORS = (OSError, ValueError, RuntimeError, LookupError, ArithmeticError, MemoryError)
"""Raised when damaged files are read."""
Result = TypeVar("Result")


class RecoveredWarning(UserWarning):
    """The newest version of an index could not be read; an older one was opened."""

    code = "GEM-404"


@dataclass(frozen=True, eq=False)
class GoodVersion:
    """The newest version that can be read."""

    view: View
    newest: int
    """The version of the view; if greater: the versions after it, up to this one, cannot be read."""
    lost: str | None = None
    """What is missing, if that is more than one version that a power cut may have torn."""


def open_dataset(uri: str, options: dict[str, str] | None, version: int | None = None) -> Any:  # noqa: ANN401
    """Open a dataset with caches of bounded size: each opening has its own."""
    import lance

    with panics_raised():
        return lance.dataset(
            uri,
            version=version,
            storage_options=options,
            metadata_cache_size_bytes=_METADATA_CACHE,
            index_cache_size_bytes=_INDEX_CACHE,
        )


def open_last_good(
    uri: str, options: dict[str, str] | None, location: str, before: View | None = None
) -> GoodVersion:
    """The newest undamaged version; warns if that is not the newest."""
    found = None
    try:
        found = open_dataset(uri, options)
        reason = torn(found, uri)
        if reason is None:
            # Not the latest version by now: another process may have committed since, undamaged.
            return GoodVersion(_read_view(found, before, location), found.version)
    except READ_ERRORS as error:
        if isinstance(error, WorkError | InputError):
            raise
        reason = first_line(error)
    if "://" in uri:
        raise WorkError(f"the table at {uri} cannot be read: {reason}")
    numbers = versions_in(Path(uri))
    if not numbers:
        raise InputError(f"{uri} holds no table: {reason}. The index folder is incomplete")
    for number in numbers:
        if (older := _undamaged(uri, number, location)) is not None:
            lost = _lost(uri, numbers, older)
            then = "the next write continues from it"
            if lost is not None:
                then = f"{lost}. It can be read, and is written to only after: gemel index repair {location}"
            warnings.warn(
                f"version {numbers[0]} of {uri} cannot be read ({reason}). Opened version {number}, the last good "
                f"one; {then}",
                RecoveredWarning,
                stacklevel=2,
            )
            return GoodVersion(older, numbers[0], lost)
    if found is not None and not has_header(found.schema):
        raise InputError(f"{location} holds a Lance table that gemel did not make. Name another folder")
    raise WorkError(
        f"no version of {uri} can be read: {reason}. Restore the folder from a copy, or try to save what can be read: "
        f"gemel index repair {location}"
    )


def refused(lost: str, location: str) -> WorkError:
    """The error of a write to a table of which more than the newest version cannot be read."""
    return WorkError(
        f"the index {location} is damaged and was opened to read only: {lost}. Nothing was written. Restore the folder "
        f"from a copy, or give up what cannot be read: gemel index repair {location}, or gemel.repair_index"
    )


def last_commit(table: Path) -> str | None:
    """When the newest version was written, in UTC."""
    times = [path.stat().st_mtime for path in (table / "_versions").glob("*.manifest")]
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None


def versions_in(table: Path) -> list[int]:
    """The numbers of the versions that have a file, newest first."""
    try:
        with os.scandir(table / "_versions") as entries:  # for every search: faster than a glob
            files = [entry.name for entry in entries]
    except OSError:
        return []
    names = (name.removesuffix(".manifest") for name in files if name.endswith(".manifest"))
    return sorted((_NAMES_FROM - int(name) for name in names if name.isdigit()), reverse=True)


def manifest_of(uri: str, version: int) -> Path:
    """The file of this version."""
    return Path(uri) / "_versions" / f"{_NAMES_FROM - version}.manifest"


def set_aside(table: Path, numbers: list[int]) -> None:
    """Move the manifests of these versions out of the table; nothing is deleted."""
    kept = table.parent / "damaged"
    kept.mkdir(exist_ok=True)
    for number in numbers:
        name = f"{_NAMES_FROM - number}.manifest"
        (table / "_versions" / name).rename(kept / f"{table.name}-{number}.manifest")


def torn(dataset: Any, uri: str) -> str | None:  # noqa: ANN401 - lance has no types
    """Why the files of this version are torn; None: sizes and last bytes are right."""
    if "://" in uri:
        return None  # an object store has complete objects only
    if not has_header(dataset.schema):
        return "its manifest does not say what the table is"
    return next((reason for each in dataset.get_fragments() if (reason := torn_fragment(each, uri))), None)


def torn_fragment(fragment: Any, uri: str) -> str | None:  # noqa: ANN401
    """Why the files of a fragment are torn; None: they are not."""
    files = [(str(file.path), file.file_size_bytes) for file in fragment.metadata.files]
    return torn_files(uri, files, fragment.deletion_file())


def torn_files(uri: str, files: Sequence[tuple[str, int | None]], deletions: str | None) -> str | None:
    """As `torn_fragment`, for these data files with their sizes."""
    for name, size in files:
        if (reason := _torn_file(Path(uri) / "data" / name, b"LANC", size)) is not None:
            return reason
    if deletions is not None:
        end = b"ARROW1" if deletions.endswith(".arrow") else b""
        return _torn_file(Path(uri) / "_deletions" / Path(deletions).name, end, None)
    return None


@contextmanager
def panics_raised() -> Iterator[None]:
    """For every call of Lance: a panic on a damaged file becomes an OSError; `except Exception` does not catch it."""
    refuse_fork()
    _Process.used = True
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"a file is damaged ({first_line(error)})") from error


def first_line(error: BaseException) -> str:
    """Lance's message, without positions in its source."""
    return str(error).split("\n", 1)[0].split(", /", 1)[0].strip()


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Errors of reading become a WorkError that names the index and says what to do."""
    try:
        with panics_raised():
            yield
    except GemelError:
        raise
    except READ_ERRORS as error:
        raise WorkError(
            f"could not read {location}: {first_line(error)}. If it was migrated or replaced, open it again; "
            f"if a file is damaged: gemel index repair {location}"
        ) from error


@contextmanager
def write_errors(location: str, then: str = "Nothing was changed") -> Iterator[None]:
    """Errors of Lance and of the disk become a WorkError that names the index."""
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
            raise Preempted(
                f"others kept writing to {location} at the same time. {then}; try again"
            ) from error
        raise WorkError(
            f"could not write to {location}: {line}. {then}; check rights and space, then try again"
        ) from error


class Preempted(WorkError):
    """Another writer was faster: read again and repeat."""


def repeated(work: Callable[[], Result]) -> Result:
    """The result of `work`, repeated while other writers are faster."""
    end, wait = time.monotonic() + PATIENCE, 0.01
    while True:
        try:
            return work()
        except Preempted:
            if time.monotonic() > end:
                raise
            time.sleep(wait * random.random())
            wait = min(2 * wait, 0.5)


def _lost(uri: str, numbers: list[int], good: View) -> str | None:
    """What the versions after the last good one had, if they are more than one."""
    gone = [number for number in numbers if number > good.version]
    if len(gone) <= 1:
        return None
    what = f"the writes of versions {gone[-1]} to {gone[0]} are missing"
    try:
        newest = open_dataset(uri, None, gone[0])
        about = {entry["version"]: entry for entry in newest.versions()}
        rows = sum(int(fragment.metadata.num_rows) for fragment in newest.get_fragments())
        since = about[gone[-1]]["timestamp"].isoformat(" ", "seconds")
    except READ_ERRORS:
        return what
    return f"{what} (since {since}; {good.passages:,} passages of {rows:,})"


def _torn_file(path: Path, end: bytes, size: int | None) -> str | None:
    try:
        there = path.stat().st_size
        if there == 0 or (size and there != size):
            return f"{path.name} has {there:,} bytes" + (f" of {size:,}" if size else "")
        with path.open("rb") as file:
            file.seek(max(0, there - len(end)))
            return None if file.read() == end or not end else f"{path.name} does not end as it should"
    except FileNotFoundError:
        return f"{path.name} is missing"


def _undamaged(uri: str, number: int, location: str) -> View | None:
    try:
        found = open_dataset(uri, None, number)
        return None if torn(found, uri) else _read_view(found, None, location)
    except READ_ERRORS:
        return None


def _read_view(dataset: Any, before: View | None, location: str) -> View:  # noqa: ANN401
    with panics_raised():
        return read_view(dataset, before, location)


class Synced:
    """Syncs the files of one table. Lance never changes a file, so each is synced once; those of other processes too,
    as a commit depends on the commits before it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: set[str] = set()

    def catch_up(self) -> None:
        """Everything that is in the folder now is on disk when this returns."""
        for folder, _, names in os.walk(self._folder):
            # A .json is Lance's hint of the newest version: rewritten with each, and not needed.
            lasting = (f"{folder}/{name}" for name in names if not name.endswith(".json"))
            fresh = [path for path in lasting if path not in self._done]
            if not fresh and folder in self._done:
                continue
            for path in fresh:
                try:
                    sync(Path(path))
                except FileNotFoundError:  # cleaned up by another process meanwhile
                    continue
            sync(Path(folder))
            self._done.update(fresh)
            self._done.add(folder)


def bytes_below(folder: Path) -> int:
    """The size of all files; those that are deleted meanwhile are left out."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(here, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


class _Process:
    """Whether this process has called Lance, and whether it was forked from one that had."""

    used = False
    forked = False


def refuse_fork() -> None:
    """Lance's threads do not exist in a forked child: its calls hang or crash there now and then, also on a dataset
    that the child opened itself."""
    if _Process.forked:
        raise WorkError(
            "an index in a folder or bucket was used before this process was forked, and Lance, which stores it, does "
            'not work in a forked process: its calls may hang. Start processes by the method "spawn" or "forkserver", '
            "or open the index after the fork only"
        )


def _in_child() -> None:
    _Process.forked = _Process.forked or _Process.used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

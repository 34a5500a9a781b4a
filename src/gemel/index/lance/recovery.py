"""The last good version of a table: what cannot be read is noticed, said, and written over by nobody unasked.

A kill leaves no torn file, as Lance makes a version visible by one rename. A power cut may: the manifest or a data
file of the newest version, which was not acknowledged unless the disk lost what it had promised. Such a version is
left behind with a warning. Where more than the newest version cannot be read, a file of an acknowledged write is
damaged: the table can be read at its last good version, and is written to only after `repair`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.index.lance.columns import has_header
from gemel.index.lance.disk import calling_lance
from gemel.index.lance.view import View, look

_NAMES_FROM = (
    2**64 - 1
)  # Lance names a version's file by its distance from here, so that the newest is listed first
_METADATA_CACHE = 64 << 20  # bytes; Lance's own 1 GB would fill up with what old versions needed
_INDEX_CACHE = 512 << 20
READ_ERRORS = (OSError, ValueError, RuntimeError, LookupError, ArithmeticError, MemoryError)
"""What comes out of files that are not as they were written."""


class RecoveredWarning(UserWarning):
    """The newest version of an index could not be read; an older one was opened."""


@dataclass(frozen=True, eq=False)
class GoodVersion:
    """The newest version that can be read."""

    view: View
    newest: int
    """The version of the view; a greater number: of versions up to that one none can be read."""
    lost: str | None = None
    """What is missing, where that is more than one version that a power cut may have torn."""


def open_dataset(uri: str, options: dict[str, str] | None, version: int | None = None) -> Any:  # noqa: ANN401
    """With bounded caches: each opening has its own."""
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
    uri: str, options: dict[str, str] | None, place: str, before: View | None = None
) -> GoodVersion:
    """The newest version that is whole. Warns where that is not the newest there is."""
    found = None
    try:
        found = open_dataset(uri, options)
        reason = torn(found, uri)
        if reason is None:
            # Not what is the latest by now: another process may have committed since, and that version is whole.
            return GoodVersion(_looked(found, before, place), found.version)
    except READ_ERRORS as error:
        if isinstance(error, WorkError | InputError):
            raise
        reason = first_line(error)
    if "://" in uri:
        raise WorkError(f"the table at {uri} cannot be read: {reason}")
    numbers = versions_in(Path(uri))
    if not numbers:
        raise InputError(f"{uri} holds no table: {reason}. The index folder is not whole")
    for number in numbers:
        if (older := _whole(uri, number, place)) is not None:
            lost = _lost(uri, numbers, older)
            warnings.warn(
                f"version {numbers[0]} of {uri} cannot be read ({reason}). Opened version {number}, the last good "
                f"one; {_then(lost, place)}",
                RecoveredWarning,
                stacklevel=2,
            )
            return GoodVersion(older, numbers[0], lost)
    if found is not None and not has_header(found.schema):
        raise InputError(f"{place} holds a Lance table that gemel did not make. Name another folder")
    raise WorkError(
        f"no version of {uri} can be read: {reason}. Restore the folder from a copy, or try to save what can be read: "
        f"gemel index repair {place}"
    )


def refused(lost: str, place: str) -> WorkError:
    """The error of a write to a table of which more than the newest version cannot be read."""
    return WorkError(
        f"the index {place} is damaged and was opened to read only: {lost}. Nothing was written. Restore the folder "
        f"from a copy, or give up what cannot be read: gemel index repair {place}, or gemel.repair_index"
    )


def versions_in(table: Path) -> list[int]:
    """The numbers of the versions that have a file, newest first."""
    try:
        with os.scandir(table / "_versions") as entries:  # every search asks: quicker than a glob
            files = [entry.name for entry in entries]
    except OSError:
        return []
    names = (name.removesuffix(".manifest") for name in files if name.endswith(".manifest"))
    return sorted((_NAMES_FROM - int(name) for name in names if name.isdigit()), reverse=True)


def manifest_of(uri: str, version: int) -> Path:
    """The file of this version."""
    return Path(uri) / "_versions" / f"{_NAMES_FROM - version}.manifest"


def set_aside(table: Path, numbers: list[int]) -> None:
    """Manifests of these versions leave the table; nothing is deleted."""
    kept = table.parent / "damaged"
    kept.mkdir(exist_ok=True)
    for number in numbers:
        name = f"{_NAMES_FROM - number}.manifest"
        (table / "_versions" / name).rename(kept / f"{table.name}-{number}.manifest")


def torn(dataset: Any, uri: str) -> str | None:  # noqa: ANN401 - lance has no types
    """Why the files of this version are not whole; None: they are, as far as sizes and last bytes tell."""
    if "://" in uri:
        return None  # an object store shows whole objects only
    if not has_header(dataset.schema):
        return "its manifest does not say what the table is"
    return next((reason for each in dataset.get_fragments() if (reason := torn_fragment(each, uri))), None)


def torn_fragment(fragment: Any, uri: str) -> str | None:  # noqa: ANN401
    """Why the files of a fragment are not whole."""
    files = [(str(file.path), file.file_size_bytes) for file in fragment.metadata.files]
    return torn_files(uri, files, fragment.deletion_file())


def torn_files(uri: str, files: Sequence[tuple[str, int | None]], deletions: str | None) -> str | None:
    """The same, of a fragment with these data files and their sizes."""
    for name, size in files:
        if (reason := _ends_well(Path(uri) / "data" / name, b"LANC", size)) is not None:
            return reason
    if deletions is not None:
        end = b"ARROW1" if deletions.endswith(".arrow") else b""
        return _ends_well(Path(uri) / "_deletions" / Path(deletions).name, end, None)
    return None


@contextmanager
def panics_raised() -> Iterator[None]:
    """Around calls of Lance: it panics on some damaged files, with what no `except Exception` catches; here that is an
    OSError. Forks wait for the end of it."""
    try:
        with calling_lance():
            yield
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"a file is damaged ({first_line(error)})") from error


def first_line(error: BaseException) -> str:
    """What Lance says, without the places in its source."""
    return str(error).split("\n", 1)[0].split(", /", 1)[0].strip()


def _then(lost: str | None, place: str) -> str:
    if lost is None:
        return "the next write goes on from it"
    return f"{lost}. It can be read, and is written to only after: gemel index repair {place}"


def _lost(uri: str, numbers: list[int], good: View) -> str | None:
    """What the versions behind the last good one had, if they are more than one."""
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


def _ends_well(path: Path, end: bytes, size: int | None) -> str | None:
    try:
        there = path.stat().st_size
        if there == 0 or (size and there != size):
            return f"{path.name} has {there:,} bytes" + (f" of {size:,}" if size else "")
        with path.open("rb") as file:
            file.seek(max(0, there - len(end)))
            return None if file.read() == end or not end else f"{path.name} does not end as it should"
    except FileNotFoundError:
        return f"{path.name} is missing"


def _whole(uri: str, number: int, place: str) -> View | None:
    try:
        found = open_dataset(uri, None, number)
        return None if torn(found, uri) else _looked(found, None, place)
    except READ_ERRORS:
        return None


def _looked(dataset: Any, before: View | None, place: str) -> View:  # noqa: ANN401
    with panics_raised():
        return look(dataset, before, place)

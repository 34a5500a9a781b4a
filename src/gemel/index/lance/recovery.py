"""The last good version of a table: what a crash of the machine tore is noticed, said, and left behind.

A kill leaves no torn file, as Lance makes a version visible by one rename. A power cut may: a manifest or data file
whose bytes did not reach the disk. Such a version was not acknowledged unless the disk lost what it had promised.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError

_NAMES_FROM = (
    2**64 - 1
)  # Lance names a version's file by its distance from here, so that the newest is listed first


class RecoveredWarning(UserWarning):
    """The newest version of an index could not be read; an older one was opened."""


@dataclass(frozen=True, eq=False)
class Good:
    dataset: Any
    newest: int
    """The version of the dataset; a greater number: of versions up to that one none can be read."""


def open_last_good(uri: str, options: dict[str, str] | None) -> Good:
    """The newest dataset that is whole. Warns where that is not the newest there is."""
    import lance

    try:
        found = lance.dataset(uri, storage_options=options)
        reason = torn(found, uri)
    except (ValueError, OSError) as error:
        found, reason = None, first_line(error)
    if reason is None:
        # Not what is the latest by now: another process may have committed since, and that version is whole.
        return Good(found, found.version)
    if "://" in uri:
        raise WorkError(f"the table at {uri} cannot be read: {reason}")
    numbers = versions_in(Path(uri))
    if not numbers:
        raise InputError(f"{uri} holds no table: {reason}. The index folder is not whole")
    for number in numbers:
        if (older := _whole(uri, number)) is not None:
            warnings.warn(
                f"version {numbers[0]} of {uri} cannot be read ({reason}). Opened version {number}, the last good "
                "one; the next write goes on from it",
                RecoveredWarning,
                stacklevel=2,
            )
            return Good(older, numbers[0])
    raise WorkError(f"no version of {uri} can be read: {reason}. Restore the folder from a copy")


def versions_in(table: Path) -> list[int]:
    """The numbers of the versions that have a file, newest first."""
    names = [path.stem for path in (table / "_versions").glob("*.manifest")]
    return sorted((_NAMES_FROM - int(name) for name in names if name.isdigit()), reverse=True)


def set_aside(table: Path, after: int) -> None:
    """Manifests of versions newer than `after` leave the table, so that the next commit follows `after`."""
    kept = table.parent / "damaged"
    kept.mkdir(exist_ok=True)
    for number in versions_in(table):
        if number > after:
            name = f"{_NAMES_FROM - number}.manifest"
            (table / "_versions" / name).rename(kept / f"{table.name}-{number}.manifest")


def torn(dataset: Any, uri: str) -> str | None:  # noqa: ANN401 - lance has no types
    """Why the files of this version are not whole; None: they are, as far as sizes and last bytes tell."""
    if "://" in uri:
        return None  # an object store shows whole objects only
    for fragment in dataset.get_fragments():
        about = fragment.metadata
        for file in about.files:
            path = Path(uri) / "data" / file.path
            if (reason := _ends_well(path, b"LANC", file.file_size_bytes)) is not None:
                return reason
        deletions = fragment.deletion_file()
        if deletions is not None:
            end = b"ARROW1" if deletions.endswith(".arrow") else b""
            if (reason := _ends_well(Path(uri) / "_deletions" / Path(deletions).name, end, None)) is not None:
                return reason
    return None


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


def _whole(uri: str, number: int) -> Any | None:  # noqa: ANN401
    import lance

    try:
        found = lance.dataset(uri, version=number)
        return None if torn(found, uri) else found
    except (ValueError, OSError):
        return None


def first_line(error: Exception) -> str:
    """What Lance says, without the places in its source."""
    return str(error).split("\n", 1)[0].split(", /", 1)[0].strip()

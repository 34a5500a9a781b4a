"""Writing that survives a kill: data first and synced, then a rename, then the folder synced.

A file in the making is `name.part` (grows) or `name.tmp` (written in one go); `name` itself is always whole.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from gemel.errors import InputError, WorkError
from gemel.folder_lock import locked as folder_locked

START_AGAIN = "Choose another folder (-o), or start again with overwrite (--overwrite)"
_CHUNK = 1 << 20

# Every name that a job may make, and so may remove; nothing else in the folder is ever touched.
_OURS = re.compile(
    r"(manifest\.json|progress\.json|(ids|texts)\.jsonl|vectors\.(npy|jsonl)|spool\.(vectors|rows)"
    r"|vectors-\d{5,}\.(safetensors|parquet))(\.part|\.tmp)?"
)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns a full disk, a read-only folder and the like into a WorkError that says how to go on."""
    try:
        yield
    except OSError as error:
        raise WorkError(
            f"cannot write to {folder}: {error.strerror or error}. All rows recorded so far are safe: "
            "make room or fix the folder, then run the same command again"
        ) from error


def part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def append(path: Path, at: int, data: bytes) -> int:
    """Write `data` at byte `at` of the growing file and cut off what was behind it; the new size.

    What lies before `at` was synced earlier; what lies behind came from a run that died before recording it.
    """
    growing = part(path)
    with growing.open("r+b" if growing.exists() else "xb") as file:
        _cut(file, at)
        file.seek(at)
        file.write(data)
        _sync(file)
    if at == 0:
        sync_folder(path.parent)
    return at + len(data)


def finish_part(path: Path, size: int, head: bytes) -> None:
    """Give the growing file its final length, its first bytes and its final name."""
    with part(path).open("r+b") as file:
        _cut(file, size)
        file.write(head)
        _sync(file)
    part(path).replace(path)
    sync_folder(path.parent)


def reopen_part(path: Path) -> None:
    """Undo `finish_part`, for a run that died after it and before the end."""
    if path.exists() and not part(path).exists():
        path.replace(part(path))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it becomes `path`, synced, when the block ends well."""
    temporary = path.with_name(path.name + ".tmp")
    yield temporary
    with temporary.open("r+b") as file:
        _sync(file)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames, new and removed files in the folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _cut(file: BinaryIO, size: int) -> None:
    if os.fstat(file.fileno()).st_size < size:
        raise InputError(f"{file.name} is shorter than recorded: the folder is damaged. {START_AGAIN}")
    file.truncate(size)


def is_ours(name: object) -> bool:
    """Whether a job could have made a file of this name; a name with a path in it is none."""
    return isinstance(name, str) and _OURS.fullmatch(name) is not None


def ours(folder: Path) -> list[str]:
    """Names in the folder that a job could have made."""
    return sorted(entry.name for entry in folder.iterdir() if is_ours(entry.name))


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Refuse a finished file that is not what was written."""
    if not path.is_file() or sha256_of(path) != sha256:
        raise InputError(
            f"{path} is missing or has changed since it was written: it is damaged. {START_AGAIN}"
        )


def locked(folder: Path) -> AbstractContextManager[None]:
    """One job per folder. The lock dies with the process, so a killed job never blocks the next one."""
    return folder_locked(
        folder, f"another process is encoding to {folder}. Wait for it, or choose another folder (-o)"
    )

"""Writing that survives a kill: data first and synced, then a rename, then the folder synced.

A file in the making is `name.part` (grows) or `name.tmp` (written in one go); `name` itself is always whole.

One job per folder: a lock between threads and processes that the system drops when its holder dies.

A folder that appears whole or not at all: filled under another name, then put in its place by one rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from gemel.errors import InputError, WorkError

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


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """One job per folder. The lock dies with the process, so a killed job never blocks the next one."""
    return locked(
        folder, f"another process is encoding to {folder}. Wait for it, or choose another folder (-o)"
    )


LOCK = ".lock"


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Alone in `folder`; `busy` is the error where another job is in it. Afterwards the lock's file is gone.

    A killed job leaves its file behind, but not its lock, so it never blocks the next one. Windows has no such locks:
    there nothing keeps two jobs apart.
    """
    if sys.platform == "win32":
        yield
        return
    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise WorkError(
                f"cannot write to {folder}: {error.strerror or error}. Make room or fix the folder, then run the same "
                "again"
            ) from error
        try:
            _lock(handle, folder, busy)
            if not _same_file(handle, path):  # its holder removed it between our open and our lock
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _lock(handle: int, folder: Path, busy: str) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(busy) from error
    except OSError as error:
        raise WorkError(f"cannot lock {folder}: {error.strerror}. Choose a folder on a local disk") from error


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill; it becomes `target`, in place of what was there, if no error is raised inside."""
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        working.mkdir(parents=True)
        yield working
        _sync_folder(working)
        _move(working, target)
    except OSError as error:
        raise WorkError(f"cannot save the model in {target}: {error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def write_json(path: Path, content: object) -> None:
    """A JSON file that a person can read; its folder is made if need be."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())


def _move(working: Path, target: Path) -> None:
    """`working` takes the place of `target`; what was there comes back if that fails."""
    if not target.exists():
        working.rename(target)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    target.rename(old)
    try:
        working.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)

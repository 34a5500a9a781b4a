"""Damage to a folder, encoded as bytes: every eight bytes change one file, so folders are fuzzed like any input."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

STEP = struct.Struct("<BBIH")  # which file, what to do, where, with what
CHANGES = 8
MOST = 4
_RANDOM = re.compile(r"[0-9a-f-]{8,}|\d+")
SEEDS = 150


def files_of(folder: Path) -> list[str]:
    """Paths below the folder, in an order that does not depend on random parts of names: those are sorted by age."""
    result = [
        (path.relative_to(folder).as_posix(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    return [
        name for name, _ in sorted(result, key=lambda each: (_RANDOM.sub("#", each[0]), each[1], each[0]))
    ]


def seeds(files: list[str]) -> list[bytes]:
    """Each change to each file, alone, at its start, in its middle or at its end; of very many files, a sample."""
    positions = (0, 2**31, 2**32 - 1)
    all_of_them = [
        STEP.pack(number, change, at, 255)
        for number in range(len(files))
        for change in range(CHANGES)
        for at in positions
    ]
    return all_of_them[:: 1 + len(all_of_them) // SEEDS]


def damaged_copy(source: Path, files: list[str], target: Path, program: bytes) -> None:
    """`target` becomes a copy of `source` with the damage that the bytes describe."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for step in range(min(MOST, len(program) // STEP.size)):
        number, change, at, value = STEP.unpack_from(program, step * STEP.size)
        path = target / files[number % len(files)]
        if path.is_file():
            _change(path, change % CHANGES, at, value)


def _change(path: Path, change: int, at: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    at = at * (len(content) + 1) >> 32  # the same part of a file of any length
    if change == 0 and at < len(content):
        content[at] ^= 1 << value % 8
    elif change == 1 and at < len(content):
        content[at] = value % 256
    elif change == 2:
        del content[at:]
    elif change == 3:
        content[at:at] = bytes(value)
    elif change == 4:
        content[at : at + 8] = value.to_bytes(8, "little")
    elif change == 5:
        content = bytearray(len(content))
    elif change == 6:
        content[at : at + value] = b""
    elif change == 7:
        path.unlink()
        return
    path.write_bytes(content)

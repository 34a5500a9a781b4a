"""The memory of this process, and what is done when it grows too large: refuse new work, then end to be restarted."""

from __future__ import annotations

import ctypes
import os
from enum import Enum
from pathlib import Path

SHED = 0.9  # part of the ceiling from which new work is refused

_STATM = Path("/proc/self/statm")


class Room(Enum):
    """What the memory allows."""

    ENOUGH = "enough"
    SHORT = "short"
    OVER = "over"


def memory_bytes() -> int:
    """Resident bytes of this process; 0 where the system does not tell."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def room(used: int, ceiling: int | None) -> Room:
    if ceiling is None or used < SHED * ceiling:
        return Room.ENOUGH
    return Room.SHORT if used <= ceiling else Room.OVER


def trim_memory() -> None:
    """Ask glibc to give back what it keeps of freed memory; other allocators do so by themselves. Takes a while."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)

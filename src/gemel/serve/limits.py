"""What one request may ask for, and the errors for asking more. Every limit is an option with a stated default.

The memory of this process, and what is done when it grows too large: refuse new work, then end to be restarted.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gemel.errors import InputError, WorkError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request, unless said otherwise."""

    body_bytes: int = 16_000_000
    """Bytes of a request's body."""
    texts: int = 2048
    """Texts in one request."""
    characters: int = 200_000
    """Characters of one text."""
    tokens: int = 500_000
    """Tokens of one request, all texts together, before the model's own cut."""
    json_depth: int = 20
    """Brackets within brackets."""
    pair_texts: int = 20_000
    """Texts in one request for pairs or clusters."""
    queue_tokens: int = 1_000_000
    """Tokens that wait, all requests together; over it: 429."""
    client_jobs: int = 16
    """Long computations (pairs, clusters, a cross-encoder, writes) of one client that run or wait; over it: 429."""
    seconds: float = 60.0
    """Until a request is answered or given up."""

    # What a body may hold is counted while it arrives, before it is parsed. Derived, so that raising a limit above
    # raises what must be let through for it.

    @property
    def json_strings(self) -> int:
        """Strings of a body, names of fields included: a hundred for each document, or the texts of pairs."""
        return max(100 * self.texts, 2 * self.pair_texts)

    @property
    def json_containers(self) -> int:
        """Lists and objects of a body: ten for each text."""
        return max(10 * self.texts, 1000)

    @property
    def json_values(self) -> int:
        """Values of a body: token ids, or strings."""
        return max(self.tokens, self.json_strings) + 1000

    @property
    def json_characters(self) -> int:
        """Characters in all strings of a body: eight for each token."""
        return max(8 * self.tokens, 2 * self.characters)

    @property
    def json_bare_bytes(self) -> int:
        """Bytes of a body that are neither in strings nor structure: ten for each number."""
        return 10 * self.json_values


class Overloaded(WorkError):
    """Too much is waiting; `retry_after` seconds later there may be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLate(WorkError):
    """The deadline of a request passed before its answer."""


def late(seconds: float) -> str:
    """What a client is told when the time of its request is over."""
    return f"the answer was not ready within {seconds:g} s. Send fewer texts at once, or try again later"


class EncodeFailed(WorkError):
    """The engine failed at one text; nothing is wrong with the others."""


class TooLarge(InputError):
    """A request over one of the limits."""


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

"""The limits of a request, the errors for exceeding them, and the memory of the process.

Bytes and JSON are counted while a body arrives (`connection.py`); the texts of a parsed body are checked by
`Limits.check_texts` in its route, and tokens by `Limits.check_tokens` where they are counted.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gemel.errors import InputError, WorkError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request, unless stated otherwise."""

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

    def check_texts(self, texts: Sequence[str], name: str, most: int | None = None) -> None:
        """Refuse an empty list, too many texts, or one that is too long.

        `name` is the field of the request; `most`: how many texts it may have, if not `self.texts`.
        """
        allowed = self.texts if most is None else most
        if not texts:
            raise InputError(f"{name} is empty: give at least one text")
        if len(texts) > allowed:
            raise TooLarge(
                f"{name} has {len(texts):,} texts; one request takes at most {allowed:,}. Send several"
            )
        for position, text in enumerate(texts):
            if len(text) > self.characters:
                raise TooLarge(
                    f"{name}[{position}] has {len(text):,} characters; a text takes at most {self.characters:,}"
                )

    def check_tokens(self, tokens: int, *, all_counted: bool = True) -> None:
        """Refuse more tokens than one request may have. `all_counted` False: counting stopped before the end."""
        if tokens > self.tokens:
            if all_counted:
                raise TooLarge(f"the request has {tokens:,} tokens, at most {self.tokens:,} are taken")
            raise TooLarge(
                f"the request has more than {self.tokens:,} tokens, which is the most that is taken. Send several"
            )

    # The limits of a body's JSON are derived: raising a limit above also raises what must be let through for it.

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


class DeadlineExceeded(WorkError):
    """The deadline of a request passed before its answer."""


def deadline_message(seconds: float) -> str:
    """The message of DeadlineExceeded."""
    return f"the answer was not ready within {seconds:g} s. Send fewer texts at once, or try again later"


class EncodeFailed(WorkError):
    """The engine failed at one text; the others are not affected."""


class TooLarge(InputError):
    """A request over one of the limits."""


# Memory: new work is refused when it is short, and the process ends to be restarted when it is over the limit.

SHED = 0.9  # part of the limit from which new work is refused

_STATM = Path("/proc/self/statm")


class MemoryState(Enum):
    """Where the memory of the process is, compared with its limit."""

    ENOUGH = "enough"
    SHORT = "short"
    OVER = "over"


def memory_bytes() -> int:
    """Resident bytes of this process; 0 where the system does not report it."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_state(used: int, limit: int | None) -> MemoryState:
    if limit is None or used < SHED * limit:
        return MemoryState.ENOUGH
    return MemoryState.SHORT if used <= limit else MemoryState.OVER


def trim_memory() -> None:
    """Make glibc return freed memory to the system; other allocators do so by themselves. Takes a while."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)

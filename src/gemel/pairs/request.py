"""What was asked for, checked at the door."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemel.errors import InputError
from gemel.options import parse_bytes

BYTES_A_PAIR = 64  # of a found pair while it is kept, sorted and returned
_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """How many, how near, with what."""

    k: int | None
    min_score: float | None
    metric: str
    memory: int
    """Bytes."""
    threads: int
    prune: bool
    progress: bool
    out: Path | None

    @property
    def floor(self) -> float:
        return -math.inf if self.min_score is None else self.min_score

    @property
    def most_pairs(self) -> int:
        """Pairs that may be in memory at once."""
        return max(1, self.memory // BYTES_A_PAIR)


def checked_limits(k: int | None, min_score: float | None) -> None:
    """Refuse limits that mean nothing."""
    if k is None and min_score is None:
        raise InputError("similar_pairs needs k (how many), min_score (how near), or both")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    if min_score is not None and not _is_number(min_score):
        raise InputError(f"min_score must be a finite number, got {min_score!r}")


def _is_number(value: object) -> bool:
    """One finite number, also as numpy has it."""
    given = np.asarray(value)
    return given.ndim == 0 and given.dtype.kind in "fiu" and bool(np.isfinite(given))


def checked_memory(memory: int | str, rows: int, k: int | None) -> int:
    """Bytes; refuses what cannot hold the answer or count the rows."""
    size = parse_bytes(memory)
    if rows > _MOST_ROWS:
        raise InputError(f"at most {_MOST_ROWS:,} rows can be compared, got {rows:,}")
    if k is not None and k * BYTES_A_PAIR > size:
        need = -(-k * BYTES_A_PAIR // 10**6)
        raise InputError(
            f"{k:,} pairs need about {need:,} MB; memory is {memory!r}. Ask for fewer, or give more memory"
        )
    return size


def too_many(request: Request) -> InputError:
    """The answer to a threshold that matches more than fits."""
    return InputError(
        f"more than {request.most_pairs:,} pairs reach min_score={request.min_score!r}: too many for "
        f"memory={request.memory:,} bytes. Give a folder, out='pairs', to stream them to disk; "
        "or a higher min_score; or k, for the best of them"
    )

"""Pages of an approximate search: one ranking for a query, however it is cut into pages.

A wider search may find what a narrower one missed, and would push documents of the first page on to the second. So a
ranking is made of fixed depths: the first 10 are those of the narrowest search, the next 40 come from the next wider
one without these, and so on. Any first part of it is the same whatever was asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

FIRST = 10
_TIMES = 5

Key = TypeVar("Key", bound=Hashable)


def depths(last: int, first: int = FIRST) -> list[int]:
    """The depths to search at for the best `last`: 10, 50, 250 ... until it is reached."""
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * _TIMES)
    return found


def joined(rankings: Sequence[Sequence[Key]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(which ranking, place in it) of each entry of the one ranking; ranking n fills it up to `sizes[n]` entries."""
    seen: set[Key] = set()
    order: list[tuple[int, int]] = []
    for number, (ranking, size) in enumerate(zip(rankings, sizes, strict=True)):
        for place, key in enumerate(ranking):
            if len(order) >= size:
                break
            if key not in seen:
                seen.add(key)
                order.append((number, place))
    return order

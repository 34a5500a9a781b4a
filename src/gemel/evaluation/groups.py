"""Things that belong together because a chain of pairs connects them: duplicates of duplicates."""

from __future__ import annotations

from collections.abc import Iterable


def connected(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Positions 0 .. size - 1 in groups; a position that no pair names is a group of its own."""
    parent = list(range(size))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]  # halve the way for the next one
            place = parent[place]
        return place

    for left, right in pairs:
        one, other = sorted((root(left), root(right)))
        parent[other] = one
    groups: dict[int, list[int]] = {}
    for place in range(size):
        groups.setdefault(root(place), []).append(place)
    return list(groups.values())

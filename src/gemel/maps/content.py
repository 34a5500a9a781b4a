"""What a map shows, whoever draws it: places, groups, names and colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.maps.places import Places

MOST = 50_000  # texts that a map shows; of more, a random choice
_HUES = ((211, 70, 45), (24, 90, 48), (140, 55, 34), (345, 70, 48), (265, 50, 52), (46, 95, 40),
         (187, 75, 34), (310, 55, 48), (95, 55, 36), (8, 55, 36), (232, 55, 62), (165, 60, 42))  # fmt: skip
"""Hue, saturation and lightness, in an order in which neighbours are far apart. Lightness differs too."""


@dataclass(frozen=True)
class Group:
    """A cluster on the map."""

    id: int
    name: str
    size: int
    text: str = ""

    @property
    def short(self) -> str:
        """Number and first words, for the map itself."""
        words = self.name.split(", ")[:2]
        line = ", ".join(words)
        return f"{self.id} {line if len(line) <= 26 else line[:25] + '…'}"


@dataclass(frozen=True, eq=False)
class MapContent:
    """A map of n texts."""

    title: str
    summary: str
    places: Places
    """(n, 2), from 0 to 1, y downwards."""
    labels: NDArray[np.int64]
    """(n,) the id of the group of each; -1: none."""
    groups: tuple[Group, ...]
    """In the order of the legend."""
    texts: Sequence[str]
    """What hovering shows; empty strings where nothing is known."""

    def __post_init__(self) -> None:
        if not len(self.places) == len(self.labels) == len(self.texts):
            raise InputError(
                f"a map needs a place, a label and a text each: got {len(self.places):,} places, "
                f"{len(self.labels):,} labels and {len(self.texts):,} texts"
            )

    def index(self) -> NDArray[np.int64]:
        """(n,) the place of each text's group in `groups`, -1 for none."""
        place = {group.id: at for at, group in enumerate(self.groups)}
        return np.array([place.get(label, -1) for label in self.labels.tolist()], dtype=np.int64)

    def middle(self, at: int, index: NDArray[np.int64]) -> tuple[float, float]:
        """Where the label of a group stands: on the member nearest to the median, so never in a gap."""
        mine = self.places[index == at]
        if not len(mine):
            return -1.0, -1.0
        x, y = mine[((mine - np.median(mine, axis=0)) ** 2).sum(axis=1).argmin()].tolist()
        return x, y


def thinned(content: MapContent, most: int = MOST) -> MapContent:
    """At most so many texts, chosen at random; the summary says it."""
    count = len(content.places)
    if count <= most:
        return content
    kept = np.sort(np.random.default_rng(0).permutation(count)[:most])
    return MapContent(
        content.title,
        f"{content.summary}. The map shows {most:,} of them, chosen at random",
        content.places[kept],
        content.labels[kept],
        content.groups,
        [content.texts[at] for at in kept.tolist()],
    )


def colour_of(at: int) -> tuple[int, int, int]:
    """Hue (degrees), saturation and lightness (percent) of the group at this place of the legend."""
    hue, saturation, lightness = _HUES[at % len(_HUES)]
    turn = at // len(_HUES)
    return (hue + 13 * turn) % 360, saturation, lightness + (8 if turn % 2 else 0)

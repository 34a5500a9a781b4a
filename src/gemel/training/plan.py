"""A batch -> what goes through the network: each distinct item once, and where each row finds its vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.objectives.table import Needs
from gemel.training.examples import Rows
from gemel.training.port import Item


@dataclass(frozen=True, eq=False)
class Plan:
    """n rows of c columns out of m items."""

    items: list[Item]
    """The m items to encode."""
    where: tuple[Rows, ...]
    """For each column of vectors, (n,) positions in `items`."""

    def share(self, rank: int, world: int) -> list[Item]:
        """The items that process `rank` of `world` encodes: every `world`-th, so that lengths are dealt evenly."""
        return self.items[rank::world]


def plan(columns: Sequence[Sequence[Item]], needs: Needs, *, repeats: bool = False) -> Plan:
    """An item that occurs several times is encoded once, unless `repeats` or each pass has a dropout of its own."""
    if needs.passes > 1 or needs.noise or repeats:
        rows = len(columns[0])
        items = [item for column in columns for item in column] * needs.passes
        where = tuple(
            np.arange(place * rows, (place + 1) * rows, dtype=np.int64)
            for place in range(len(columns) * needs.passes)
        )
        return Plan(items, where)
    places: dict[Item, int] = {}
    where = tuple(
        np.fromiter((places.setdefault(item, len(places)) for item in column), np.int64, len(column))
        for column in columns
    )
    return Plan(list(places), where)

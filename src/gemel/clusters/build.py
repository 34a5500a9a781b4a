"""From a grouping of points to the answer: ids by size and content, figures, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.clusters.figures import Closeness, closeness, silhouette
from gemel.clusters.keywords import keywords
from gemel.clusters.methods import Grouping, sums_of
from gemel.clusters.points import Labels, Points
from gemel.clusters.result import Anchors, Cluster, Clusters
from gemel.types import Vectors


def ordered(grouping: Grouping, points: Points) -> Grouping:
    """The same clusters, largest first; of equal ones, that with the earlier centre in the order of the points."""
    count = len(grouping.centres)
    inside = grouping.labels >= 0
    sizes = np.bincount(grouping.labels[inside], points.counts[inside], count)
    order = np.lexsort((grouping.centres, -sizes))
    place = np.full(count + 1, -1, dtype=np.int64)
    place[order] = np.arange(count)
    return Grouping(
        place[grouping.labels], grouping.centres[order], grouping.heart[order], grouping.reach[order]
    )


def built(
    vectors: Vectors,
    points: Points,
    grouping: Grouping,
    texts: Sequence[str] | None,
    method: str,
    settings: Mapping[str, Any],
) -> Clusters:
    """`grouping` is in order: its labels are the ids."""
    labels = points.spread(grouping.labels)
    sums, sizes = sums_of(points, grouping.labels, len(grouping.centres))
    ids = np.arange(len(sizes))
    items = described(ids, points.first[grouping.centres], sizes, closeness(sums, sizes), texts, labels)
    loose = np.flatnonzero(labels < 0)
    said = None if texts is None else tuple(texts[at] for at in loose.tolist())
    anchors = Anchors(grouping.heart, grouping.reach, sums, vectors[loose], said)
    quality = silhouette(points, grouping.labels, sums, sizes)
    return Clusters(method, settings, labels, items, quality, anchors)


def described(
    ids: Labels,
    centres: Labels,
    sizes: Labels,
    close: Closeness,
    texts: Sequence[str] | None,
    labels: Labels,
) -> tuple[Cluster, ...]:
    """`labels` are those of `texts`; only for names."""
    words: list[tuple[str, ...]] = [()] * len(ids)
    if texts is not None:
        words = keywords(texts, labels, len(ids))
    return tuple(
        Cluster(
            id=int(ids[place]),
            size=int(sizes[place]),
            centre=int(centres[place]),
            text=None if texts is None else texts[int(centres[place])],
            keywords=words[place],
            **facts(close, place, ids),
        )
        for place in range(len(ids))
    )


def facts(close: Closeness, place: int, ids: NDArray[np.int64]) -> dict[str, Any]:
    """The figures of one cluster, as fields of `Cluster`."""
    other = int(close.nearest[place])
    return {
        "inside": float(close.inside[place]),
        "nearest": None if other < 0 else int(ids[other]),
        "outside": None if other < 0 else float(close.outside[place]),
    }

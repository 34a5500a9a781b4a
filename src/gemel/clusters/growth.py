"""Texts added to clusters that are there: no earlier text moves, no id changes, leftovers make new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gemel.clusters.build import built, facts, ordered
from gemel.clusters.figures import closeness
from gemel.clusters.methods import METHODS, Request, no_clusters
from gemel.clusters.points import Labels, points_of
from gemel.clusters.result import Anchors, Cluster, Clusters
from gemel.errors import InputError
from gemel.similarity import normalize
from gemel.types import Vectors


def grown(earlier: Clusters, vectors: Vectors, texts: Sequence[str] | None, request: Request) -> Clusters:
    """The labels of the earlier texts, then those of the new ones."""
    named = earlier.anchors.loose_texts is not None
    if len(earlier.labels) and named != (texts is not None):
        raise InputError(
            "the earlier clusters were made with texts: give texts for the new vectors too"
            if named
            else "the earlier clusters were made without texts: leave texts away"
        )
    labels = np.concatenate([earlier.labels, earlier.assign(vectors)])
    sums = _sums_with(earlier, vectors, labels[len(earlier.labels) :])
    new, left = _leftover(earlier, vectors, texts, request, labels)
    start = 1 + max((cluster.id for cluster in earlier.items), default=-1)
    labels[left] = np.where(new.labels >= 0, new.labels + start, -1)
    items = _items(earlier, new, start, left, labels, np.concatenate([sums, new.anchors.sums]))
    anchors = Anchors(
        np.concatenate([earlier.anchors.heart, new.anchors.heart]),
        np.concatenate([earlier.anchors.reach, new.anchors.reach]),
        np.concatenate([sums, new.anchors.sums]),
        new.anchors.loose,
        new.anchors.loose_texts,
    )
    return Clusters(earlier.method, earlier.settings, labels, items, None, anchors)


def _leftover(
    earlier: Clusters, vectors: Vectors, texts: Sequence[str] | None, request: Request, labels: Labels
) -> tuple[Clusters, Labels]:
    """Clusters among all that are in none yet, earlier and new, and the positions of those."""
    count = len(earlier.labels)
    left = np.flatnonzero(labels < 0)
    fresh = left[left >= count] - count
    rows = np.concatenate([earlier.anchors.loose, vectors[fresh]])
    said = None
    if texts is not None:
        said = [*(earlier.anchors.loose_texts or ()), *(texts[at] for at in fresh.tolist())]
    points = points_of(rows)
    if request.k is None and len(points):
        grouping = ordered(METHODS[request.method](points, request), points)
    else:  # k clusters are there already, and take all that has a direction
        grouping = no_clusters(points)
    return built(rows, points, grouping, said, request.method, {}), left


def _sums_with(earlier: Clusters, vectors: Vectors, labels: Labels) -> NDArray[np.float64]:
    sums = earlier.anchors.sums.copy()
    place = {cluster.id: at for at, cluster in enumerate(earlier.items)}
    unit = normalize(vectors)
    for label in np.unique(labels[labels >= 0]).tolist():
        sums[place[label]] += unit[labels == label].sum(axis=0, dtype=np.float64)
    return sums


def _items(
    earlier: Clusters, new: Clusters, start: int, left: Labels, labels: Labels, sums: NDArray[np.float64]
) -> tuple[Cluster, ...]:
    """Sizes and figures anew; names and centres of earlier clusters stay."""
    moved = [replace(item, id=item.id + start, centre=int(left[item.centre])) for item in new.items]
    items = [*earlier.items, *moved]
    ids = np.array([item.id for item in items], dtype=np.int64)
    counts = np.bincount(labels[labels >= 0], minlength=int(ids.max(initial=-1)) + 1)
    sizes = counts[ids]
    close = closeness(sums, sizes)
    return tuple(replace(item, size=int(sizes[at]), **facts(close, at, ids)) for at, item in enumerate(items))

"""Communities: groups around a center, with every member at least as similar to the center as a threshold.

Texts are visited by their number of neighbors, most first. A text that is in no community yet becomes a center, and
its neighbors that are in none join it, if together they are at least `min_size`. One pass, so it always ends.
Ties go to the text that is nearer to its neighbors, then to the order of `Points`.
"""

from __future__ import annotations

import numpy as np

from gemel.errors import InputError
from gemel.groups.grouping import (
    METHODS,
    ClusterRequest,
    Grouping,
    Labels,
    Neighbors,
    Points,
    neighbors_above,
)

DEFAULT_MIN_SCORE = 0.75


@METHODS.add("communities")
def communities(points: Points, request: ClusterRequest) -> Grouping:
    """Centers are texts; a later text joins a community if its similarity to the center is at least the threshold."""
    if request.k is not None:
        raise InputError("communities takes min_score, not k. For k clusters take the method k-means")
    min_score = DEFAULT_MIN_SCORE if request.min_score is None else request.min_score
    near = neighbors_above(
        points.rows, min_score, memory=request.memory, threads=request.threads, progress=request.progress
    )
    labels, centers = group_around_centers(near, points.counts, request.min_size)
    return Grouping(labels, centers, points.rows[centers], np.full(len(centers), min_score))


def group_around_centers(near: Neighbors, counts: Labels, min_size: int) -> tuple[Labels, Labels]:
    """(n,) communities, -1 for none, and their centers. `counts`: the number of texts that are equal to each row."""
    sizes = counts + _sums(counts, near)
    order = np.lexsort((-near.nearness, -sizes))  # stable: remaining ties stay in the order of the rows
    labels = np.full(len(counts), -1, dtype=np.int64)
    taken = np.zeros(len(counts), dtype=bool)
    centers: list[int] = []
    for center in order[: int((sizes >= min_size).sum())].tolist():
        if taken[center]:
            continue
        members = near.of(center)
        members = members[~taken[members]]
        if counts[center] + counts[members].sum() < min_size:
            continue
        taken[center], labels[center] = True, len(centers)
        taken[members], labels[members] = True, len(centers)
        centers.append(center)
    return labels, np.array(centers, dtype=np.int64)


def _sums(counts: Labels, near: Neighbors) -> Labels:
    """(n,) the number of texts among the neighbors of each row."""
    if (counts == 1).all():
        return np.diff(near.start)
    running = np.append(0, np.cumsum(counts[near.index]))
    return np.asarray(running[near.start[1:]] - running[near.start[:-1]])

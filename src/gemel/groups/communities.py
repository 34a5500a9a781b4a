"""Communities: groups around a centre that every member is as near to as a threshold.

A text with more neighbours comes first. Going down that order, a text that no community has yet becomes a centre, and
those of its neighbours that are still free join it, if together they are enough. One pass, so it always ends.
Ties in the number of neighbours go to the text that is nearer to its neighbours, then to the order of `Points`.
"""

from __future__ import annotations

import numpy as np

from gemel.groups.methods import METHODS, ClusterRequest, Grouping, Labels, Points
from gemel.groups.neighbors import Neighbours, neighbours_above

DEFAULT_MIN_SCORE = 0.75


@METHODS.add("communities")
def communities(points: Points, request: ClusterRequest) -> Grouping:
    """Centres are texts; a later text joins a community when it is as near to the centre as the threshold."""
    min_score = DEFAULT_MIN_SCORE if request.min_score is None else request.min_score
    near = neighbours_above(
        points.rows, min_score, memory=request.memory, threads=request.threads, progress=request.progress
    )
    labels, centres = around_centres(near, points.counts, request.min_size)
    return Grouping(labels, centres, points.rows[centres], np.full(len(centres), min_score))


def around_centres(near: Neighbours, counts: Labels, min_size: int) -> tuple[Labels, Labels]:
    """(n,) communities, -1 for none, and their centres. `counts`: how many texts each row stands for."""
    sizes = counts + _sums(counts, near)
    order = np.lexsort(
        (-near.nearness, -sizes)
    )  # stable: what is left of ties stays in the order of the rows
    labels = np.full(len(counts), -1, dtype=np.int64)
    taken = np.zeros(len(counts), dtype=bool)
    centres: list[int] = []
    for centre in order[: int((sizes >= min_size).sum())].tolist():
        if taken[centre]:
            continue
        members = near.of(centre)
        members = members[~taken[members]]
        if counts[centre] + counts[members].sum() < min_size:
            continue
        taken[centre], labels[centre] = True, len(centres)
        taken[members], labels[members] = True, len(centres)
        centres.append(centre)
    return labels, np.array(centres, dtype=np.int64)


def _sums(counts: Labels, near: Neighbours) -> Labels:
    """(n,) texts that each row's neighbours stand for."""
    if (counts == 1).all():
        return np.diff(near.start)
    running = np.append(0, np.cumsum(counts[near.index]))
    return np.asarray(running[near.start[1:]] - running[near.start[:-1]])

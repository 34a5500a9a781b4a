"""Isotonic regression: the non-decreasing curve nearest to labels 0 and 1 (pool adjacent violators)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.errors import InputError

FEWEST = 10  # labels; fewer say next to nothing


@dataclass(frozen=True)
class ProbabilityCurve:
    """Knots of a curve that never falls; straight between them, level outside."""

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    labels: int
    """How many labels it was fitted on."""

    def at(self, score: float) -> float:
        return float(np.interp(score, self.scores, self.probabilities))


def fit_probability(labels: Sequence[tuple[float, int]]) -> ProbabilityCurve:
    """The curve through (score, 0 or 1) pairs: in each block of scores, the share of ones."""
    scores, truths = _checked(labels)
    blocks: list[tuple[float, float, float, float]] = []  # ones, labels, first and last score
    for score in np.unique(scores):
        here = truths[scores == score]
        block = (float(here.sum()), float(len(here)), float(score), float(score))
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            ones, count, first, _ = blocks.pop()
            block = (ones + block[0], count + block[1], first, block[3])
        blocks.append(block)
    knots = [(edge, ones / count) for ones, count, *edges in blocks for edge in dict.fromkeys(edges)]
    return ProbabilityCurve(tuple(edge for edge, _ in knots), tuple(p for _, p in knots), len(truths))


def _checked(labels: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = np.asarray([(float(score), float(truth)) for score, truth in labels])
    except (TypeError, ValueError):
        raise InputError("labels must be pairs (score, 0 or 1)") from None
    ones = int((table[:, 1] == 1).sum()) if len(table) else 0
    if len(table) and (not np.isfinite(table[:, 0]).all() or not np.isin(table[:, 1], (0, 1)).all()):
        raise InputError("labels must be pairs (score, 0 or 1), with finite scores")
    if len(table) < FEWEST or ones in (0, len(table)):
        raise InputError(
            f"a probability needs at least {FEWEST} labels with both 0 and 1 among them; "
            f"got {len(table)}, of which {ones} are 1. Label more pairs, also some that do not belong together"
        )
    return table[:, 0], table[:, 1]

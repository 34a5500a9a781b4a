"""What a score means on a corpus: random pairs say how high chance alone gets. Arrays in, `Calibration` out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gemel.calibration.result import Calibration as Calibration
from gemel.calibration.sample import random_scores
from gemel.calibration.tail import fit_tail, stretch_of
from gemel.errors import InputError
from gemel.similarity import METRICS, check_same_dim, checked

__all__ = ["Calibration", "calibrate"]

FEWEST_PAIRS = 1000  # 46 texts: fewer do not show how high chance gets
_STEPS = 1001  # scores kept of the body of the distribution


def calibrate(
    vectors: ArrayLike,
    *,
    other: ArrayLike | None = None,
    sample: int = 2_000_000,
    seed: int = 0,
    metric: str = "cosine",
    labels: Sequence[tuple[float, int]] | None = None,
) -> Calibration:
    """The distribution of the scores of random pairs within `vectors`, or between them and `other`.

    sample: pairs to score, about; a corpus with fewer is scored whole.
    labels: (score, 0 or 1) of some pairs, which make `probability` possible.

    Pairs that belong together (near-duplicates) hardly move the fit while they are fewer than one in a thousand.
    """
    METRICS[metric]
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < FEWEST_PAIRS:
        raise InputError(f"sample must be a whole number of at least {FEWEST_PAIRS}, got {sample!r}")
    left = checked(vectors, "vectors")
    right = None if other is None else checked(other, "other")
    if right is not None:
        check_same_dim(left, right, "vectors", "rows of other")
    total = len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)
    if total < FEWEST_PAIRS:
        raise InputError(
            f"calibration needs at least {FEWEST_PAIRS:,} pairs (46 texts) to see how high chance gets, "
            f"got {total:,}. Give more texts of the same kind"
        )
    random = np.random.default_rng(seed)
    scores = np.sort(random_scores(left, right, metric=metric, most=sample, random=random))
    tail = fit_tail(scores, stretch_of(metric))
    if tail is None:
        raise InputError("nearly all random pairs have the same score: there is nothing to calibrate")
    body = np.quantile(scores, np.linspace(0, 1 - math.exp(-tail.level), _STEPS))
    found = Calibration(
        metric=metric,
        total=total,
        rows=(len(left),) if right is None else (len(left), len(right)),
        sampled=len(scores),
        mean=float(scores.mean(dtype=np.float64)),
        deviation=float(scores.std(dtype=np.float64)),
        body=tuple(body.tolist()),
        tail=tail,
    )
    return found if labels is None else found.with_labels(labels)

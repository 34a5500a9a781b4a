"""What tasks over rows of texts share: the columns' vectors, and the similarities that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.scores import Score
from gemel.evaluation.systems import PairScorer, System, with_vectors
from gemel.similarity import METRICS, row_scores
from gemel.types import AnyVectors

LEFT = ("sentence1", "left", "question1", "text1")
RIGHT = ("sentence2", "right", "question2", "text2")
"""Names that a column of the first and the second text of a pair may have."""


def chosen_metrics(metric: str) -> tuple[str, ...]:
    """The similarity of this name, or cosine and then the others for "all"."""
    if metric == "all":
        return ("cosine", *(name for name in METRICS if name != "cosine"))
    METRICS[metric]  # an unknown name is refused before anything is encoded
    return (metric,)


def column_vectors(encoder: System, *columns: Sequence[str], task: str) -> list[AnyVectors]:
    """The vectors of each column. One call for all, so that equal texts and lengths meet."""
    texts = [text for column in columns for text in column]
    vectors = np.asarray(with_vectors(encoder, texts, task).encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(
            f"an encoder gives a row for each text, but for {len(texts)} texts it gave the shape {vectors.shape}"
        )
    return np.split(vectors, np.cumsum([len(column) for column in columns])[:-1])


def pair_scores(
    system: System, left: Sequence[str], right: Sequence[str], metrics: Sequence[str], task: str
) -> dict[str, NDArray[np.float64]]:
    """The score of each pair by each similarity; a cross-encoder has its own in their place."""
    if isinstance(system, PairScorer):
        if len(metrics) > 1:
            raise InputError(
                "a cross-encoder has one score of its own, not several similarities. Leave metric out"
            )
        return {metrics[0]: np.asarray(system.scores(left, right), np.float64)}
    one, other = column_vectors(system, left, right, task=task)
    return {metric: np.asarray(row_scores(one, other, metric), np.float64) for metric in metrics}


def side_by_side(
    metrics: Sequence[str], values_for: Callable[[str], Mapping[str, Score]]
) -> dict[str, Score]:
    """The values of one similarity; of several, the first one's under their plain names, then each by its name."""
    every = {metric: values_for(metric) for metric in metrics}
    values = dict(every[metrics[0]])
    if len(metrics) > 1:
        for name in list(values):
            values |= {f"{name}-{metric}": every[metric][name] for metric in metrics}
    return values


def run_settings(rounds: int, seed: int) -> dict[str, object]:
    """How intervals were made, for the protocol; refuses what cannot be drawn."""
    if isinstance(rounds, bool) or rounds < 0:
        raise InputError(f"rounds must be 0 (no intervals) or more, got {rounds!r}")
    return {"interval": "95 %, percentile bootstrap" if rounds else "none", "rounds": rounds, "seed": seed}

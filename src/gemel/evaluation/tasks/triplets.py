"""Triplets: the share of rows in which the positive is nearer to the anchor than the negative."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemel.evaluation.data import dataset_name, fingerprint, tables_with, with_columns
from gemel.evaluation.statistics import MeanSample
from gemel.evaluation.task import (
    TASKS,
    Bootstrap,
    Score,
    Scores,
    Task,
    chosen_metrics,
    column_vectors,
    side_by_side,
)
from gemel.types import AnyVectors, Encoder
from gemel.vectors.similarity import row_scores

NEGATIVE = ("negative", "negative1", "negative_1")


@dataclass(frozen=True, eq=False)
class TripletsTask:
    """Rows of an anchor, a positive and one or more negatives."""

    dataset: str
    columns: tuple[tuple[str, ...], ...]
    """The anchors, the positives, then each column of negatives."""
    metrics: tuple[str, ...]
    bootstrap: Bootstrap
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Accuracy for each similarity. A tie is a miss; the positive must be nearer than every negative of its row."""
        vectors = column_vectors(encoder, *self.columns, task="triplets")
        samples = {metric: _hits(vectors, metric) for metric in self.metrics}

        def values(metric: str) -> dict[str, Score]:
            return {"accuracy": self.bootstrap.score(samples[metric])}

        return Scores(
            task="triplets",
            dataset=self.dataset,
            main="accuracy",
            values=side_by_side(self.metrics, values),
            items=len(self.columns[0]),
            unit="triplets",
            protocol=self.protocol,
            sample=samples[self.metrics[0]],
        )


def _hits(vectors: list[AnyVectors], metric: str) -> MeanSample:
    anchor, positive, *negatives = vectors
    nearest = np.max([row_scores(anchor, negative, metric) for negative in negatives], axis=0)
    return MeanSample((row_scores(anchor, positive, metric) > nearest).astype(np.float64))


@TASKS.add("triplets")
def load(path: str | Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of anchor, positive, negative (and negative1, negative2, ...)."""
    files = tables_with(Path(path), with_columns(("anchor",), ("positive",), NEGATIVE))
    metrics, bootstrap = chosen_metrics(metric), Bootstrap(rounds, seed)
    tasks: list[Task] = []
    for table in files.tables:
        table.texts(*NEGATIVE)  # raises for a table without it, and lists its columns
        negatives = [name for name in table.columns if re.fullmatch(r"negative_?\d*", name)]
        columns = tuple(tuple(table.texts(name)) for name in ("anchor", "positive", *negatives))
        protocol = {
            "metric": metric,
            **bootstrap.settings,
            **files.protocol,
            "negatives": len(negatives),
            "ties": "a miss",
            "data": fingerprint(*columns),
        }
        tasks.append(TripletsTask(dataset_name(table.path), columns, metrics, bootstrap, protocol))
    return tasks

"""Triplets: the share of rows in which the positive is nearer to the anchor than the negative."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemel.evaluation.data import fingerprint, tables_with, with_columns
from gemel.evaluation.metrics import Floats
from gemel.evaluation.task import TASKS, Bootstrap, Scores, Task, chosen_metrics, column_vectors, mean_scores
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
        first, *others = self.metrics
        hits = {metric: _hits(vectors, metric) for metric in self.metrics}
        each = {f"accuracy-{metric}": hits[metric] for metric in self.metrics} if others else {}
        return mean_scores(
            "triplets",
            self.dataset,
            {"accuracy": hits[first], **each},
            self.protocol,
            self.bootstrap,
            unit="triplets",
        )


def _hits(vectors: list[AnyVectors], metric: str) -> Floats:
    """(n,) 1 for each row in which the positive is nearest."""
    anchor, positive, *negatives = vectors
    nearest = np.max([row_scores(anchor, negative, metric) for negative in negatives], axis=0)
    return np.asarray(row_scores(anchor, positive, metric) > nearest, np.float64)


@TASKS.add("triplets")
def load(path: str | Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of anchor, positive, negative (and negative1, negative2, ...)."""
    metrics, bootstrap = chosen_metrics(metric), Bootstrap(rounds, seed)
    tasks: list[Task] = []
    for table in tables_with(path, with_columns(("anchor",), ("positive",), NEGATIVE)):
        table.texts(*NEGATIVE)  # raises for a table without it, and lists its columns
        negatives = [name for name in table.columns if re.fullmatch(r"negative_?\d*", name)]
        columns = tuple(tuple(table.texts(name)) for name in ("anchor", "positive", *negatives))
        protocol = {
            "metric": metric,
            **bootstrap.settings,
            **table.protocol,
            "negatives": len(negatives),
            "ties": "a miss",
            "data": fingerprint(*columns),
        }
        tasks.append(TripletsTask(table.name, columns, metrics, bootstrap, protocol))
    return tasks

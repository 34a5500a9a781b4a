"""Triplets: is the positive nearer to the anchor than the negative? The number is the share of rows where it is."""

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
    Score,
    Scores,
    Task,
    chosen_metrics,
    column_vectors,
    run_settings,
    score_of,
    side_by_side,
)
from gemel.types import AnyVectors, Encoder
from gemel.vectors.similarity import row_scores

NEGATIVE = ("negative", "negative1", "negative_1")


@dataclass(frozen=True, eq=False)
class TripletsTask:
    """Rows of an anchor, a positive and one negative or more."""

    dataset: str
    columns: tuple[tuple[str, ...], ...]
    """The anchors, the positives, then each column of negatives."""
    metrics: tuple[str, ...]
    rounds: int
    seed: int
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Accuracy for each similarity; a tie is a miss, and the positive has to beat every negative of its row."""
        vectors = column_vectors(encoder, *self.columns, task="triplets")
        samples = {metric: _hits(vectors, metric) for metric in self.metrics}

        def values(metric: str) -> dict[str, Score]:
            return {"accuracy": score_of(samples[metric], rounds=self.rounds, seed=self.seed)}

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
    wanted = with_columns(("anchor",), ("positive",), NEGATIVE)
    found = tables_with(Path(path), wanted)
    metrics = chosen_metrics(metric)
    tasks: list[Task] = []
    for table in found.tables:
        table.texts(*NEGATIVE)  # refuses a table without it, and names what is there
        negatives = [name for name in table.columns if re.fullmatch(r"negative_?\d*", name)]
        columns = tuple(tuple(table.texts(name)) for name in ("anchor", "positive", *negatives))
        protocol = {
            "metric": metric,
            **run_settings(rounds, seed),
            **found.protocol,
            "negatives": len(negatives),
            "ties": "a miss",
            "data": fingerprint(*columns),
        }
        tasks.append(TripletsTask(dataset_name(table.path), columns, metrics, rounds, seed, protocol))
    return tasks

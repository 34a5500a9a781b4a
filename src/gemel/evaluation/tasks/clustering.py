"""Clustering: k-means with as many clusters as classes, compared with the classes, for several seeds.

The main number is the V-measure, a mean over the seeds. Its interval shows how much k-means depends on the seed; it
says nothing about other texts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.data import DataTable, fingerprint, tables_with, with_columns
from gemel.evaluation.metrics import ClusterAgreement, agreement
from gemel.evaluation.probe import compact, one_thread
from gemel.evaluation.statistics import MeanSample, choose
from gemel.evaluation.task import POINTS, TASKS, Bootstrap, Score, Scores, Task, column_vectors
from gemel.types import Encoder
from gemel.vectors.similarity import checked

TEXT = ("text", "sentence")

LABEL = ("label",)


@dataclass(frozen=True)
class Clustering:
    """Texts with their classes."""

    dataset: str
    texts: Sequence[str]
    labels: Sequence[str]
    seeds: int = 10
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    """Its seed is also the first seed of k-means."""
    rows: int = 0
    """Rows in the file, where `texts` are a random sample of them."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: Encoder) -> Scores:
        """V-measure, homogeneity, completeness, NMI, ARI and accuracy: means and standard deviations over seeds."""
        (column,) = column_vectors(encoder, self.texts, task="clustering")
        vectors = compact(checked(column, "vectors"))
        classes = len(set(self.labels))
        seeds = range(self.bootstrap.seed, self.bootstrap.seed + self.seeds)
        runs = [agreement(self.labels, k_means(vectors, classes, seed=seed)) for seed in seeds]
        sample = MeanSample(np.array([run.v_measure for run in runs]))
        return Scores(
            task="clustering",
            dataset=self.dataset,
            main="v-measure",
            values=self._values(runs, sample),
            items=len(self.texts),
            unit="texts",
            protocol={
                "clusters": classes,
                "algorithm": "k-means++ start, Lloyd, Euclidean, one start for each seed",
                "seeds": list(seeds),
                "aggregation": "mean over the seeds",
                **self.files,
                **self.bootstrap.settings,
                "drawn": "seeds: the luck of k-means, not the choice of texts",
                "nmi": "mutual information over the geometric mean of the entropies",
                "accuracy": "each cluster given to at most one class, best assignment",
                "rows": f"{len(self.texts)} of {self.rows or len(self.texts)}",
                "data": fingerprint(self.texts, self.labels),
            },
            sample=sample,
        )

    def _values(self, runs: Sequence[ClusterAgreement], sample: MeanSample) -> dict[str, Score]:
        columns = [asdict(run) for run in runs]
        values = {}
        for name in columns[0]:
            numbers = POINTS * np.array([column[name] for column in columns])
            values[name.replace("_", "-")] = Score(float(numbers.mean()), note=_spread(numbers))
        main = self.bootstrap.score(sample)
        return {**values, "v-measure": replace(main, note=values["v-measure"].note)}


@TASKS.add("clustering")
def load(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    seeds: int = 10,
    seed: int = 0,
    rounds: int = 1000,
) -> list[Task]:
    """One task for the file, or for each table of the folder that has a text and a label column.

    `limit`: this many rows, chosen at random since files are often sorted by class.
    """
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    text_names, label_names = (text,) if text else TEXT, (label,) if label else LABEL
    tasks: list[Task] = []
    for table in tables_with(path, with_columns(text_names, label_names)):
        texts, labels = table.texts(*text_names), table.texts(*label_names)
        _check(table, labels)
        chosen = choose(len(texts), limit, seed)
        kept = [labels[row] for row in chosen]
        if len(set(kept)) < 2:
            raise InputError(f"{table.path}: {len(kept)} rows of one label; raise limit to take in more")
        tasks.append(
            Clustering(
                table.name,
                [texts[row] for row in chosen],
                kept,
                seeds,
                Bootstrap(rounds, seed),
                rows=len(texts),
                files=table.protocol,
            )
        )
    return tasks


def k_means(
    vectors: Any,  # noqa: ANN401 - see compact
    clusters: int,
    *,
    seed: int,
    starts: int = 1,
    weights: NDArray[Any] | None = None,
) -> NDArray[np.int64]:
    """(n,) the cluster of each row, the best of `starts`. The same seed gives the same, with any number of cores."""
    try:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
    except ImportError as error:
        raise MissingExtra("k-means", "scikit-learn", "evaluate") from error
    if vectors.shape[0] < clusters:
        raise InputError(f"{vectors.shape[0]} vectors cannot make {clusters} clusters: give at least as many")
    fitted = KMeans(clusters, n_init=starts, random_state=seed)
    # One thread: several add up the centers in any order, and the rounding then differs between runs.
    with one_thread("k-means"), warnings.catch_warnings():
        # Fewer distinct vectors than clusters leave some empty, which the measures show.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(fitted.fit_predict(vectors, sample_weight=weights), dtype=np.int64)


def _spread(numbers: NDArray[Any]) -> str:
    if len(numbers) < 2:
        return "one seed: no interval"
    return f"standard deviation {numbers.std(ddof=1):.2f} over {len(numbers)} seeds"


def _check(table: DataTable, labels: Sequence[str]) -> None:
    for row, label in enumerate(labels):
        if not label.strip():
            raise InputError(f"{table.location(row)}: the label is empty")
    if len(set(labels)) < 2:
        raise InputError(f"{table.path} has one label only, {labels[0]!r}; clustering needs at least two")

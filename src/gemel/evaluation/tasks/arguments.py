"""Argument similarity: do two arguments on a topic make the same point?

Three parts: the cosine; and, as in the Sentence-BERT paper for AFS, a regression on |u - v| and u * v with 10-fold
cross-validation and across topics (each topic predicted by a fit on the others). The encoder is not fine-tuned, so
these numbers are below those of a trained model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import DataTable, fingerprint, tables_with, with_columns
from gemel.evaluation.metrics import Floats, LabelSample, macro_f1, pearson, spearman
from gemel.evaluation.probe import PENALTIES, fit_ridge, one_thread, pair_features
from gemel.evaluation.statistics import CorrelationSample, Sample, choose, deal_folds
from gemel.evaluation.task import POINTS, TASKS, Bootstrap, Score, Scores, Task, column_vectors
from gemel.types import Encoder, Vectors
from gemel.vectors.similarity import checked, row_scores

GRADES = {"DTORCD": 0.0, "NS": 0.0, "SS": 1.0, "HS": 2.0}
"""Labels of the UKP ASPECT corpus: different topic or cannot decide, no, some, high similarity."""

COLUMNS = ("topic", "sentence1", "sentence2")

Folds = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CrossValidated:
    """A score for each pair, and whether the pair counts as similar, by a fit without it."""

    predicted: Floats
    similar: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ArgumentSimilarity:
    """Pairs of arguments with a topic and a grade of similarity."""

    dataset: str
    topics: Sequence[str]
    left: Sequence[str]
    right: Sequence[str]
    gold: Floats
    cut: float = 1.0
    """For F1, grades of at least this count as similar."""
    grading: str = "a number"
    folds: int = 10
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    """Its seed is also that of the folds."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: Encoder) -> Scores:
        """The correlation of the cosine; cosine and both regressions, with F1, as parts."""
        columns = column_vectors(encoder, self.left, self.right, task="arguments")
        left, right = (checked(column, "vectors") for column in columns)
        cosine = row_scores(left, right).astype(np.float64)
        features = pair_features(left, right)
        topics = np.unique(np.asarray(self.topics), return_inverse=True)[1].astype(np.int64)
        mixed = deal_folds((self.gold * 2).astype(np.int64), self.folds, self.bootstrap.seed)
        by_fold, by_topic = self._regression(features, mixed), self._regression(features, topics)
        parts = (
            self._part("cosine", self._cosine(cosine, topics), topics, "topics", {"supervised": "no"}),
            self._part(f"{self.folds}-fold", by_fold, mixed, "folds", self._fit(f"{self.folds} folds")),
            self._part("cross-topic", by_topic, topics, "topics", self._fit("each topic in turn")),
        )
        return Scores(
            task="arguments",
            dataset=self.dataset,
            main="spearman",
            values=parts[0].values,
            items=len(self.gold),
            unit="pairs",
            parts=parts,
            protocol={"similarity": "cosine", **parts[0].protocol},
            sample=parts[0].sample,
        )

    def _cosine(self, cosine: Floats, folds: Folds) -> CrossValidated:
        """Only the threshold of F1 is fitted, on the other topics."""
        similar = np.empty(len(cosine), dtype=np.int64)
        for fold in np.unique(folds):
            out = folds == fold
            similar[out] = cosine[out] >= best_threshold(cosine[~out], self._similar[~out])
        return CrossValidated(cosine, similar)

    def _regression(self, features: Vectors, folds: Folds) -> CrossValidated:
        predicted, similar = np.empty(len(folds)), np.empty(len(folds), dtype=np.int64)
        for fold in np.unique(folds):
            out = folds == fold
            with one_thread("a regression on argument pairs"):
                fit = fit_ridge(features[~out], self.gold[~out])
            predicted[out] = fit.predict(features[out])
            similar[out] = predicted[out] >= best_threshold(fit.left_out, self._similar[~out])
        return CrossValidated(predicted, similar)

    def _part(
        self, name: str, result: CrossValidated, folds: Folds, over: str, protocol: Mapping[str, Any]
    ) -> Scores:
        """`over` is what the folds are: topics, or folds of mixed pairs."""
        predicted = _without_fold_means(result.predicted, folds)
        sample = CorrelationSample(self.gold, predicted)
        means = _fold_means(self.gold, predicted, folds)
        return Scores(
            task="arguments",
            dataset=f"{self.dataset}/{name}",
            main="spearman",
            values={
                "spearman": self._measured(sample),
                "pearson": self._measured(CorrelationSample(self.gold, predicted, "pearson")),
                f"spearman-mean-of-{over}": means["spearman"],
                f"pearson-mean-of-{over}": means["pearson"],
                "f1-macro": self._measured(LabelSample(self._similar, result.similar, "macro_f1")),
            },
            items=len(self.gold),
            unit="pairs",
            protocol={
                **protocol,
                "gold": self.grading,
                "aggregation": f"all pairs together; the mean over {over} next to it",
                "f1": f"similar is a grade of at least {self.cut:g}; the threshold is the best of the training part"
                " (the other topics, or the other folds), by predictions that left the pair out",
                **self.files,
                **self.bootstrap.settings,
                "drawn": "pairs",
                "data": fingerprint(self.topics, self.left, self.right, self.gold.tolist()),
            },
            sample=sample,
        )

    def _fit(self, held_out: str) -> dict[str, Any]:
        return {
            "supervised": "ridge regression on |u - v|, u * v of fixed vectors",
            "held_out": held_out,
            "penalties": list(PENALTIES),
            "penalty_chosen_by": "leave-one-out on the training part",
        }

    def _measured(self, sample: Sample) -> Score:
        why = "undefined: all predictions or all grades are equal"
        return self.bootstrap.score(sample, undefined=why)

    @property
    def _similar(self) -> NDArray[np.int64]:
        return (self.gold >= self.cut).astype(np.int64)


@TASKS.add("arguments")
def load(
    path: str | Path,
    *,
    cut: float = 1.0,
    limit: int | None = None,
    folds: int = 10,
    seed: int = 0,
    rounds: int = 1000,
) -> list[Task]:
    """One task for the file, or for each table of the folder that has the columns topic, sentence1, sentence2.

    The grade is a column `score` of numbers or a column `label` with the grades of UKP ASPECT.
    """
    tables = tables_with(path, with_columns(*((name,) for name in COLUMNS)))
    return [_task(table, cut, limit, folds, Bootstrap(rounds, seed)) for table in tables]


def best_threshold(scores: Floats, similar: NDArray[np.int64]) -> float:
    """The threshold with the highest macro F1: halfway between two consecutive of 201 quantiles of the scores."""
    steps = np.unique(np.quantile(scores, np.linspace(0, 1, 201)))
    between = (steps[1:] + steps[:-1]) / 2 if len(steps) > 1 else steps
    values = [macro_f1(similar, (scores >= threshold).astype(np.int64)) or 0.0 for threshold in between]
    return float(between[int(np.argmax(values))])


def _without_fold_means(predicted: Floats, folds: Folds) -> Floats:
    """Zeros where the predictions of each fold are all equal: they are the mean of its training part."""
    spread = max(float(np.ptp(predicted[folds == fold])) for fold in np.unique(folds))
    return np.zeros_like(predicted) if spread < 1e-9 else predicted


def _fold_means(gold: Floats, predicted: Floats, folds: Folds) -> dict[str, Score]:
    means = {}
    for name, correlate in (("spearman", spearman), ("pearson", pearson)):
        each = [correlate(gold[folds == fold], predicted[folds == fold]) for fold in np.unique(folds)]
        defined = [number for number in each if number is not None]
        undefined = len(each) - len(defined)
        note = f"undefined in {undefined} of {len(each)}, left out" if undefined else ""
        means[name] = Score(POINTS * float(np.mean(defined)) if defined else None, note=note)
    return means


def _task(
    table: DataTable, cut: float, limit: int | None, folds: int, bootstrap: Bootstrap
) -> ArgumentSimilarity:
    topics, left, right = (table.texts(name) for name in COLUMNS)
    by_score = table.has("score")
    gold = table.numbers("score") if by_score else _grades(table)
    rows = choose(len(gold), limit, bootstrap.seed)
    task = ArgumentSimilarity(
        table.name,
        [topics[row] for row in rows],
        [left[row] for row in rows],
        [right[row] for row in rows],
        gold[rows],
        cut=cut,
        grading="column score" if by_score else ", ".join(f"{name} = {g:g}" for name, g in GRADES.items()),
        folds=folds,
        bootstrap=bootstrap,
        files=table.protocol,
    )
    if len(set(task.topics)) < 2:
        raise InputError(
            f"{table.path} has one topic only, {task.topics[0]!r}; cross-topic needs two or more"
        )
    return task


def _grades(table: DataTable) -> Floats:
    gold = np.empty(len(table))
    for row, label in enumerate(table.texts("label")):
        if label not in GRADES:
            raise InputError(f"{table.location(row)}: unknown label {label!r}. Known: {', '.join(GRADES)}")
        gold[row] = GRADES[label]
    return gold

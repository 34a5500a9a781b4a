"""Transfer: accuracy of a linear classifier on the vectors, by the protocol of SentEval (arXiv 1803.05449).

Sets without a split (MR, CR, SUBJ, MPQA): 10 folds, the penalty chosen by 10 inner folds. SST-2: chosen on dev. TREC
and MRPC: chosen by 10 folds of the training part. MRPC has pairs: features |u - v| and u * v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import DataTable, dataset_name, fingerprint, is_table, read_table
from gemel.evaluation.metrics import LabelSample
from gemel.evaluation.probe import GRID, ProbeResult, pair_features, probe_dev, probe_folds, probe_inner
from gemel.evaluation.statistics import MeanSample, choose
from gemel.evaluation.task import TASKS, Bootstrap, Scores, Task, column_vectors
from gemel.registry import Registry
from gemel.types import Encoder, Vectors
from gemel.vectors.similarity import checked

Files = tuple[str, str | None, str | None]
"""Names of the files of a data set without endings: training, development and test part."""

_FILES: dict[str, Files] = {
    **{name: (name, None, None) for name in ("mr", "cr", "subj", "mpqa")},
    "sst2": ("sst2-train", "sst2-dev", "sst2-test"),
    "trec": ("trec-train", None, "trec-test"),
    "mrpc": ("mrpc-train", None, "mrpc-test"),
}

ORDER = tuple(_FILES)  # of the paper's table

SETS: Registry[Files] = Registry("transfer data set")

for _name, _files in _FILES.items():
    SETS.add(_name)(_files)


@dataclass(frozen=True)
class Split:
    """Labeled texts, or labeled pairs of texts."""

    labels: Sequence[str]
    left: Sequence[str]
    right: Sequence[str] | None = None

    @property
    def columns(self) -> list[Sequence[str]]:
        return [self.left] if self.right is None else [self.left, self.right]


@dataclass(frozen=True)
class Transfer:
    """One data set; without `test`, its rows are predicted fold by fold."""

    dataset: str
    train: Split
    test: Split | None = None
    dev: Split | None = None
    folds: int = 10
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    """Its seed is also that of the folds."""
    rows: int = 0
    """Training rows in the file, where `train` is a random sample of them."""

    def score(self, encoder: Encoder) -> Scores:
        """Accuracy with an interval over the tested rows; for pairs also the F1 of label 1."""
        tested = self.test or self.train
        splits = [split for split in (self.train, self.dev, self.test) if split]
        names = sorted({label for split in splits for label in split.labels})
        probed = self._probe(encoder, names)
        gold = _numbers(tested.labels, names)
        sample = MeanSample((probed.predicted == gold).astype(np.float64))
        values = {"accuracy": self.bootstrap.score(sample)}
        if tested.right is not None and names == ["0", "1"]:
            values["f1"] = self.bootstrap.score(
                LabelSample(gold, probed.predicted, "f1"),
                undefined="no pair has or was given the label 1",
            )
        return Scores(
            task="transfer",
            dataset=self.dataset,
            main="accuracy",
            values=values,
            items=len(gold),
            unit="texts" if tested.right is None else "pairs",
            protocol={
                "classifier": "logistic regression, L2, on fixed vectors, not standardised",
                "features": "u" if tested.right is None else "|u - v|, u * v",
                "tested": f"all rows, {self.folds} folds" if self.test is None else "the test split",
                "grid": list(GRID),
                "chosen_on": "dev" if self.dev else f"{self.folds} folds of the training rows",
                "chosen": list(probed.chosen),
                "training_rows": f"{len(self.train.labels)} of {self.rows or len(self.train.labels)}",
                **self.bootstrap.settings,
                "drawn": "tested rows",
                "data": fingerprint(*tested.columns, tested.labels),
            },
            sample=sample,
        )

    def _probe(self, encoder: Encoder, names: Sequence[str]) -> ProbeResult:
        splits = [split for split in (self.train, self.dev, self.test) if split]
        features = _features(encoder, splits)
        labels = [_numbers(split.labels, names) for split in splits]
        if self.test is None:
            return probe_folds(features[0], labels[0], folds=self.folds, seed=self.bootstrap.seed)
        if self.dev is None:
            return probe_inner(
                features[0], labels[0], features[1], folds=self.folds, seed=self.bootstrap.seed
            )
        return probe_dev(features[0], labels[0], features[1], labels[1], features[2])


@TASKS.add("transfer")
def load(
    path: str | Path,
    *,
    only: Sequence[str] | str | None = None,
    limit: int = 20_000,
    folds: int = 10,
    seed: int = 0,
    rounds: int = 1000,
) -> list[Task]:
    """The data sets of SentEval, by file names in a folder and its subfolders; a single file is tested by folds.

    `only` names some of them, in a list or as "mr,cr". `limit` is the maximum of training rows, chosen at random; 0
    means all. Only SST-2 has more than the default: 67,349 phrases, more than all the other texts.
    """
    path = Path(path)
    bootstrap = Bootstrap(rounds, seed)
    if path.is_file():
        return [_task(dataset_name(path), [read_table(path), None, None], limit, folds, bootstrap)]
    by_name = {dataset_name(file): file for file in sorted(path.rglob("*")) if is_table(file)}
    names = only.split(",") if isinstance(only, str) else list(only or ORDER)
    tasks: list[Task] = []
    for name in names:
        files = SETS[name]
        needed = [file for file in files if file]
        missing = [file for file in needed if file not in by_name]
        if missing and (only is not None or len(missing) < len(needed)):
            raise InputError(f"{name} needs the file {missing[0]}.tsv (or .tsv.gz) in {path}")
        if not missing:
            tables = [read_table(by_name[file]) if file else None for file in files]
            tasks.append(_task(name, tables, limit, folds, bootstrap))
    if not tasks:
        examples = ", ".join(f"{name}.tsv" for name in ORDER[:4])
        raise InputError(f"no transfer data in {path}: expected files like {examples} (also .gz)")
    return tasks


def _task(
    name: str, tables: Sequence[DataTable | None], limit: int, folds: int, bootstrap: Bootstrap
) -> Transfer:
    train, dev, test = tables
    assert train is not None
    return Transfer(
        name,
        train=_split(train, choose(len(train), limit or None, bootstrap.seed)),
        test=_split(test) if test else None,
        dev=_split(dev) if dev else None,
        folds=folds,
        bootstrap=bootstrap,
        rows=len(train),
    )


def _split(table: DataTable, rows: NDArray[np.int64] | None = None) -> Split:
    chosen = range(len(table)) if rows is None else rows.tolist()
    labels = table.texts("label")
    for row, label in enumerate(labels):
        if not label.strip():
            raise InputError(f"{table.location(row)}: the label is empty")
    labels = [labels[row] for row in chosen]
    if len(set(labels)) < 2 and rows is not None:
        raise InputError(
            f"{table.path} has one label only in its training rows, {labels[0]!r}; at least two are needed"
        )
    if table.has("sentence1"):
        left, right = table.texts("sentence1"), table.texts("sentence2")
        return Split(labels, [left[row] for row in chosen], [right[row] for row in chosen])
    texts = table.texts("sentence", "text")
    return Split(labels, [texts[row] for row in chosen])


def _features(encoder: Encoder, splits: Sequence[Split]) -> list[Vectors]:
    """The vectors of each split; for pairs, |u - v| and u * v."""
    columns = [column for split in splits for column in split.columns]
    vectors = iter(
        checked(column, "vectors") for column in column_vectors(encoder, *columns, task="transfer")
    )
    return [
        next(vectors) if split.right is None else pair_features(next(vectors), next(vectors))
        for split in splits
    ]


def _numbers(labels: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[label] for label in labels], dtype=np.int64)

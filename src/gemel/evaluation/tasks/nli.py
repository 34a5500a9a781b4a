"""Natural language inference with the head that a model was trained with and kept: accuracy of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import DataTable, dataset_name, fingerprint, tables_with, with_columns
from gemel.evaluation.statistics import MeanSample
from gemel.evaluation.task import LEFT, RIGHT, TASKS, Scores, Task, run_settings, score_of
from gemel.types import Encoder

_UNLABELLED = ("-", "")  # SNLI: the annotators did not agree


class Relation(Protocol):
    """The way of asking a classification head: texts to (n, labels) probabilities."""

    def __call__(self, left: Sequence[str], right: Sequence[str], /) -> NDArray[Any]: ...


@dataclass(frozen=True)
class NliHead:
    """The classification head that an encoder kept."""

    labels: tuple[str, ...]
    """Names of the columns of `relation`, in lower case."""
    relation: Relation

    def chances(self, left: Sequence[str], right: Sequence[str]) -> NDArray[Any]:
        """(n, labels) probabilities, checked: a NaN would be taken for the first label."""
        found = np.asarray(self.relation(left, right))
        if found.shape != (len(left), len(self.labels)):
            raise InputError(
                f"`relation` gives ({len(left)}, {len(self.labels)}) probabilities, got {found.shape}"
            )
        if not np.isfinite(found).all():
            raise InputError("`relation` gives probabilities, but some of them are not finite numbers")
        return found


def head_of(encoder: Encoder) -> NliHead:
    """The head by the attributes `relation` and `labels`; labels of None say that none was kept."""
    labels, relation = getattr(encoder, "labels", None), getattr(encoder, "relation", None)
    if labels is None or relation is None:
        name = getattr(encoder, "name", "") or type(encoder).__name__
        raise InputError(
            f"task 'nli' scores a classification head, but {name} keeps none (no `relation` and `labels`). "
            "Train one on labelled pairs and keep it, or evaluate the vectors with task 'sts'"
        )
    names = tuple(str(label).strip().lower() for label in labels)
    if len(set(names)) < len(names):
        raise InputError(f"two labels of the head have the same name: {', '.join(map(str, labels))}")
    return NliHead(names, relation)


@dataclass(frozen=True, eq=False)
class NliTask:
    """Premises and hypotheses with the relation that people saw."""

    dataset: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    labels: tuple[str, ...]
    rounds: int
    seed: int
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Accuracy of the most probable of the head's labels; they are matched to those of the data by name."""
        head = head_of(encoder)
        unknown = sorted(set(self.labels) - set(head.labels))
        if unknown:
            raise InputError(
                f"{self.dataset} has the label {unknown[0]!r}; the model knows {', '.join(head.labels)}"
            )
        chances = head.chances(self.left, self.right)
        gold = np.array([head.labels.index(label) for label in self.labels])
        sample = MeanSample((chances.argmax(axis=1) == gold).astype(np.float64))
        return Scores(
            task="nli",
            dataset=self.dataset,
            main="accuracy",
            values={"accuracy": score_of(sample, rounds=self.rounds, seed=self.seed)},
            items=len(self.labels),
            unit="pairs",
            protocol={**self.protocol, "labels": list(head.labels)},
            sample=sample,
        )


@TASKS.add("nli")
def load(path: str | Path, *, rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of premise, hypothesis and label; rows without an agreed label ("-") are left out."""
    needed = (("premise", *LEFT), ("hypothesis", *RIGHT), ("label", "entailment"))
    found = tables_with(Path(path), with_columns(*needed))
    protocol = {**run_settings(rounds, seed), **found.protocol}
    return [_task(table, needed, rounds, seed, protocol) for table in found.tables]


def _task(
    table: DataTable,
    needed: Sequence[tuple[str, ...]],
    rounds: int,
    seed: int,
    protocol: Mapping[str, Any],
) -> NliTask:
    rows = list(zip(*(table.texts(*column) for column in needed), strict=True))
    labelled = [row for row in rows if row[2].strip() not in _UNLABELLED]
    if not labelled:
        raise InputError(f"{table.path} has no row with a label")
    left, right, labels = zip(*labelled, strict=True)
    return NliTask(
        dataset=dataset_name(table.path),
        left=left,
        right=right,
        labels=tuple(label.strip().lower() for label in labels),
        rounds=rounds,
        seed=seed,
        protocol={
            **protocol,
            "unlabelled": len(rows) - len(labelled),
            "data": fingerprint(left, right, labels),
        },
    )

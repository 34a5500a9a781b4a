"""Natural language inference with the NLI head of a model: accuracy of its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import LEFT, RIGHT, DataTable, fingerprint, tables_with, with_columns
from gemel.evaluation.task import TASKS, Bootstrap, Scores, Task, mean_scores, system_name
from gemel.types import Encoder

_COLUMNS = (("premise", *LEFT), ("hypothesis", *RIGHT), ("label", "entailment"))

_UNLABELED = ("-", "")  # SNLI: the annotators did not agree


Relation = Callable[[Sequence[str], Sequence[str]], NDArray[Any]]
"""From pairs of texts to (n, labels) probabilities."""


@dataclass(frozen=True)
class NliHead:
    """The NLI head of an encoder."""

    labels: tuple[str, ...]
    """Names of the columns of `relation`, in lower case."""
    relation: Relation

    def probabilities(self, left: Sequence[str], right: Sequence[str]) -> NDArray[Any]:
        """(n, labels), checked: argmax would take a NaN for the first label."""
        result = np.asarray(self.relation(left, right))
        if result.shape != (len(left), len(self.labels)):
            raise InputError(
                f"`relation` must return ({len(left)}, {len(self.labels)}) probabilities, got {result.shape}"
            )
        if not np.isfinite(result).all():
            raise InputError("`relation` must return probabilities, but some of them are not finite numbers")
        return result


def head_of(encoder: Encoder) -> NliHead:
    """The head by the attributes `relation` and `labels`; an InputError where the encoder has none."""
    labels, relation = getattr(encoder, "labels", None), getattr(encoder, "relation", None)
    if labels is None or relation is None:
        raise InputError(
            f"task 'nli' scores an NLI head, but {system_name(encoder)} has none (no `relation` and `labels`). "
            "Train one on labeled pairs and keep it, or evaluate the vectors with task 'sts'"
        )
    names = tuple(str(label).strip().lower() for label in labels)
    if len(set(names)) < len(names):
        raise InputError(f"two labels of the head have the same name: {', '.join(map(str, labels))}")
    return NliHead(names, relation)


@dataclass(frozen=True, eq=False)
class NliTask:
    """Premises and hypotheses with the labels that people gave them."""

    dataset: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    labels: tuple[str, ...]
    bootstrap: Bootstrap
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Accuracy of the most probable label of the head; labels of head and data are matched by name."""
        head = head_of(encoder)
        unknown = sorted(set(self.labels) - set(head.labels))
        if unknown:
            raise InputError(
                f"{self.dataset} has the label {unknown[0]!r}; the labels of the model are {', '.join(head.labels)}"
            )
        probabilities = head.probabilities(self.left, self.right)
        gold = np.array([head.labels.index(label) for label in self.labels])
        return mean_scores(
            "nli",
            self.dataset,
            {"accuracy": (probabilities.argmax(axis=1) == gold).astype(np.float64)},
            {**self.protocol, "labels": list(head.labels)},
            self.bootstrap,
            unit="pairs",
        )


@TASKS.add("nli")
def load(path: str | Path, *, rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of premise, hypothesis and label; rows without an agreed label ("-") are left out."""
    return [_task(table, Bootstrap(rounds, seed)) for table in tables_with(path, with_columns(*_COLUMNS))]


def _task(table: DataTable, bootstrap: Bootstrap) -> NliTask:
    rows = list(zip(*(table.texts(*names) for names in _COLUMNS), strict=True))
    labeled = [row for row in rows if row[2].strip() not in _UNLABELED]
    if not labeled:
        raise InputError(f"{table.path} has no row with a label")
    left, right, labels = zip(*labeled, strict=True)
    return NliTask(
        dataset=table.name,
        left=left,
        right=right,
        labels=tuple(label.strip().lower() for label in labels),
        bootstrap=bootstrap,
        protocol={
            **bootstrap.settings,
            **table.protocol,
            "unlabeled": len(rows) - len(labeled),
            "data": fingerprint(left, right, labels),
        },
    )

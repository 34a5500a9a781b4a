"""Natural language inference with the head that a model was trained with and kept: accuracy of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data_files import tables_with
from gemel.evaluation.samples import MeanSample
from gemel.evaluation.scores import Scores, score_of
from gemel.evaluation.table import DataTable, dataset_name, fingerprint
from gemel.evaluation.task import TASKS, Task
from gemel.evaluation.text_columns import LEFT, RIGHT, run_settings
from gemel.types import Encoder

_UNLABELLED = ("-", "")  # SNLI: the annotators did not agree


@runtime_checkable
class RelationEncoder(Protocol):
    """An encoder that kept its classification head."""

    @property
    def labels(self) -> Sequence[str]: ...

    def relation(self, left: Sequence[str], right: Sequence[str]) -> NDArray[Any]:
        """(n, labels) probabilities of each label for each pair."""
        ...


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
        """Accuracy of the most probable label."""
        if not isinstance(encoder, RelationEncoder):
            raise InputError(
                "task 'nli' scores a classification head, but this model has none (no `relation` and `labels`). "
                "Train one on labelled pairs and keep it, or evaluate the vectors with task 'sts'"
            )
        known = {name.lower(): place for place, name in enumerate(encoder.labels)}
        unknown = sorted(set(self.labels) - set(known))
        if unknown:
            raise InputError(
                f"{self.dataset} has the label {unknown[0]!r}; the model knows {', '.join(known)}"
            )
        chances = np.asarray(encoder.relation(self.left, self.right))
        if chances.shape != (len(self.labels), len(known)):
            raise InputError(
                f"`relation` gives ({len(self.labels)}, {len(known)}) probabilities, got {chances.shape}"
            )
        gold = np.array([known[label] for label in self.labels])
        sample = MeanSample((chances.argmax(axis=1) == gold).astype(np.float64))
        return Scores(
            task="nli",
            dataset=self.dataset,
            main="accuracy",
            values={"accuracy": score_of(sample, rounds=self.rounds, seed=self.seed)},
            items=len(self.labels),
            unit="pairs",
            protocol=self.protocol,
            sample=sample,
        )


@TASKS.add("nli")
def load(path: str | Path, *, rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of premise, hypothesis and label; rows without an agreed label ("-") are left out."""
    needed = (("premise", *LEFT), ("hypothesis", *RIGHT), ("label", "entailment"))
    found = tables_with(Path(path), needed)
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

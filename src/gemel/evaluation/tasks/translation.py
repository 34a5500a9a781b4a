"""Task "translation": find each sentence's translation among all sentences of the other language."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.data import DataTable, RequiredColumns, tables_with
from gemel.evaluation.task import TASKS, Bootstrap, Scores, System, Task, mean_scores, with_vectors
from gemel.types import AnyVectors
from gemel.vectors.search import search
from gemel.vectors.similarity import METRICS

_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)?")

_NOT_A_LANGUAGE = {
    "id"
}  # a column "id" is most often an identifier; Indonesian must be named as source or target


@dataclass(frozen=True)
class TranslationTask:
    """Parallel columns, ready for any encoder."""

    dataset: str
    columns: dict[str, tuple[str, ...]]
    source: str
    targets: tuple[str, ...]
    metric: str
    bootstrap: Bootstrap
    files: Mapping[str, Any] = field(default_factory=dict)
    """The part of the protocol on the choice of files."""

    def score(self, encoder: System) -> Scores:
        """Accuracy, the mean of both directions; with several languages, the mean of the parts."""
        every = [text for texts in self.columns.values() for text in texts]
        ready = with_vectors(encoder, every, "translation")
        vectors = {name: ready.encode(texts) for name, texts in self.columns.items()}
        pairs = {target: self._pair(target, vectors) for target in self.targets}
        parts = tuple(self._scores(target, values) for target, values in pairs.items())
        if len(parts) == 1:
            return parts[0]
        means = {"accuracy": np.mean([values["accuracy"] for values in pairs.values()], axis=0)}
        means |= {f"{self.source}-{target}": values["accuracy"] for target, values in pairs.items()}
        return replace(self._scores("", means), parts=parts)

    def _pair(self, target: str, vectors: dict[str, AnyVectors]) -> dict[str, NDArray[np.float64]]:
        forward = self._right(self.source, target, vectors)
        backward = self._right(target, self.source, vectors)
        return {
            "accuracy": (forward + backward) / 2,
            f"{self.source}-to-{target}": forward,
            f"{target}-to-{self.source}": backward,
        }

    def _right(self, source: str, target: str, vectors: dict[str, AnyVectors]) -> NDArray[np.float64]:
        """(n,) 1 where the nearest sentence is the translation, or another row with the same words."""
        texts = self.columns[target]
        nearest = search(vectors[source], vectors[target], 1, self.metric).index[:, 0]
        return np.array([float(texts[i] == texts[row]) for row, i in enumerate(nearest)])

    def _scores(self, target: str, values: dict[str, NDArray[np.float64]]) -> Scores:
        """Of one pair of languages; of all where `target` is empty."""
        return mean_scores(
            "translation",
            f"{self.dataset} {self.source}-{target}" if target else self.dataset,
            values,
            self._protocol(target),
            self.bootstrap,
            unit="sentences",
        )

    def _protocol(self, target: str) -> dict[str, Any]:
        used = [self.columns[name] for name in (self.source, *([target] if target else self.targets))]
        return {
            "metric": self.metric,
            "search": "exact, all sentences of the other language; ties to the earlier one",
            "right": "the nearest sentence is the translation, or equal to it word for word",
            "accuracy": "mean of both directions" + ("" if target else " and of all language pairs"),
            **self.files,
            **self.bootstrap.protocol("sentences", *used),
        }


@TASKS.add("translation")
def load(
    path: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    metric: str = "cosine",
    rounds: int = 1000,
    seed: int = 0,
) -> list[Task]:
    """Tables with a column for each language, a row for each sentence.

    `source` is the first language column if it is not named, `target` each of the others.
    """
    METRICS[metric]
    named = [name for name in (source, target) if name]

    def fits(columns: Collection[str]) -> bool:
        return all(name in columns for name in named) and len(_languages(columns, named)) > 1

    listed = f"{', '.join(map(repr, named))}, " if named else ""
    required = RequiredColumns(fits, f"{listed}at least two named by language codes such as 'en' and 'de'")
    bootstrap = Bootstrap(rounds, seed)
    return [_read(table, source, target, metric, bootstrap) for table in tables_with(path, required)]


def _read(
    table: DataTable, source: str | None, target: str | None, metric: str, bootstrap: Bootstrap
) -> TranslationTask:
    named = [name for name in (source, target) if name]
    for name in named:
        table.texts(name)  # an unknown column raises an error that lists the columns
    if source is not None and source == target:
        raise InputError(f"source and target are both {source!r}; name two columns")
    languages = _languages(table.columns, named)
    first = source or next((name for name in languages if name != target), None)
    targets = [target] if target else [name for name in languages if name != first]
    if first is None or not targets:
        raise InputError(
            f"{table.path} needs at least two columns named by language codes; it has {', '.join(table.columns)}. "
            "Name others as source and target (--set source=NAME)"
        )
    columns = {name: table.columns[name] for name in (first, *targets)}
    return TranslationTask(
        table.name, columns, first, tuple(targets), metric, bootstrap, files=table.protocol
    )


def _languages(columns: Collection[str], named: Collection[str]) -> list[str]:
    return [
        name
        for name in columns
        if name in named or (_LANGUAGE.fullmatch(name) and name not in _NOT_A_LANGUAGE)
    ]

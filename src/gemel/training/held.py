"""A few texts and positive pairs of the training data, held to see how their vectors lie before, during and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.objectives.table import Needs
from gemel.training.examples import Batch, Examples

_ROWS = 512


@dataclass(frozen=True, eq=False)
class Held:
    """Distinct texts, and pairs of positions in them that belong together (none where the data does not say)."""

    texts: list[str]
    pairs: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """(p, 2)"""


def hold(examples: Sequence[Examples], needs: Needs, seed: int) -> Held:
    """Some rows of the largest data set, the same for the same seed."""
    largest = max(examples, key=len)
    rng = np.random.default_rng([seed, len(largest)])
    rows = np.sort(rng.permutation(len(largest))[:_ROWS].astype(np.int64))
    batch = largest.batch(rows)
    places: dict[str, int] = {}
    for column in batch.columns:
        for text in column:
            places.setdefault(text, len(places))
    pairs = [(places[one], places[other]) for one, other in _positives(batch, needs, largest.classes)]
    return Held(list(places), np.asarray(pairs, dtype=np.int64).reshape(-1, 2))


def _positives(batch: Batch, needs: Needs, classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Texts that mean the same, as far as the labels say."""
    if len(batch.columns) < 2:
        return _neighbours(batch) if needs.label == "group" and batch.label is not None else []
    rows = list(zip(batch.columns[0], batch.columns[1], strict=True))
    if batch.label is None or needs.label in ("margin", "vector"):
        return rows
    if needs.label == "class":
        same = batch.label == (classes.index("entailment") if "entailment" in classes else -1)
    else:
        same = batch.label >= (0.8 if needs.label == "score" else 1)
    return [row for row, kept in zip(rows, same, strict=True) if kept]


def _neighbours(batch: Batch) -> list[tuple[str, str]]:
    """Each text with the one before it of the same group."""
    last: dict[int, str] = {}
    pairs = []
    assert batch.label is not None
    for text, group in zip(batch.columns[0], batch.label.tolist(), strict=True):
        if group in last:
            pairs.append((last[group], text))
        last[group] = text
    return pairs

"""Two columns with the same text: fine, useless or certainly wrong, depending on what the label says of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemel.training.doctor.diagnosis import Finding, Level
from gemel.training.doctor.evidence import Evidence
from gemel.training.examples import Rows

_FEW = 3  # rows that are enough to call a pattern
_MOST = 0.5


def same_texts(evidence: Evidence) -> Iterator[Finding]:
    """Pairs whose two texts are equal, judged by the kind of the label."""
    if not evidence.paired:
        return
    rows = np.flatnonzero(evidence.hashes[:, 0] == evidence.hashes[:, 1])
    kind = evidence.needs.label
    if not len(rows):
        return
    if kind == "class":
        yield from _classes(evidence, rows)
    elif kind in ("score", "binary"):
        yield from _scores(evidence, rows)
    elif evidence.roles[:2] == ("anchor", "positive"):
        level: Level = "warning" if len(rows) >= _MOST * len(evidence) else "note"
        what = "same text as anchor and positive"
        yield evidence.finding(
            level, what, rows, "They teach nothing; for texts without positives there is simcse"
        )


def same_negatives(evidence: Evidence) -> Iterator[Finding]:
    """A negative that is the row's own anchor or positive."""
    for column, role in enumerate(evidence.roles):
        if role != "negative":
            continue
        for other, name in ((1, "positive"), (0, "anchor")):
            rows = np.flatnonzero(evidence.hashes[:, column] == evidence.hashes[:, other])
            if len(rows):
                level: Level = "error" if len(rows) >= _MOST * len(evidence) else "warning"
                what = f"same text as {name} and negative (text column {column + 1})"
                yield evidence.finding(level, what, rows, "Such a row asks for the impossible: remove it")


def _classes(evidence: Evidence, rows: Rows) -> Iterator[Finding]:
    assert evidence.labels is not None
    classes = evidence.examples.classes
    if "entailment" not in classes:
        yield evidence.finding("note", "same text on both sides", rows)
        return
    entailed = evidence.labels[rows] == classes.index("entailment")
    if entailed.any():
        yield evidence.finding("note", "same text on both sides", rows[entailed])
    if not entailed.all():
        what = "same text on both sides, not labelled entailment"
        yield evidence.finding("warning", what, rows[~entailed], "A text entails itself: mend the label")


def _scores(evidence: Evidence, rows: Rows) -> Iterator[Finding]:
    assert evidence.labels is not None
    values = evidence.labels.astype(np.float64)
    middle = (values.min() + values.max()) / 2
    low = values[rows] < middle
    if low.sum() >= _FEW and low.mean() > _MOST:
        yield evidence.finding(
            "error",
            f"the scale is reversed: of {len(rows):,} pairs of equal texts, {int(low.sum()):,} are labelled as unlike",
            rows[low],
            "Labels must grow with similarity: if they are distances, turn them round",
        )
    elif low.any():
        what = "same text on both sides, labelled as unlike"
        yield evidence.finding("warning", what, rows[low], "Equal texts cannot be unlike: mend the label")
    if not low.all():
        what = "same text on both sides"
        yield evidence.finding("note", what, rows[~low], "They teach nothing: equal texts have equal vectors")

"""Rows that stand twice: as they are, with another label, or with the two texts exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.class_names import NLI
from gemel.training.doctor.diagnosis import Finding, Level
from gemel.training.doctor.evidence import Evidence, mixed
from gemel.training.examples import Rows

_MANY = 0.05  # of the rows: from here on a repetition is a warning
_FAR = 0.2  # two scores of one pair, rescaled to 0..1, that are further apart than people usually are


def repeated_rows(evidence: Evidence) -> Iterator[Finding]:
    """Exact duplicates: all texts and the label."""
    keys = mixed(evidence.hashes)
    labels = evidence.labels
    if labels is not None and labels.ndim == 1:
        keys = keys * np.uint64(31) + np.ascontiguousarray(labels, dtype=np.float64).view(np.uint64)
    order = np.argsort(keys, kind="stable")
    again = np.sort(order[1:][keys[order][1:] == keys[order][:-1]])
    if len(again):
        level: Level = "warning" if len(again) >= _MANY * len(evidence) else "note"
        yield evidence.finding(
            level,
            "repeats of an earlier row",
            again,
            "They count more than once; remove them unless it is meant",
        )


def conflicting_labels(evidence: Evidence) -> Iterator[Finding]:
    """The same texts with different labels."""
    labels = evidence.labels
    if labels is None or labels.ndim != 1 or evidence.needs.label == "margin":
        return
    rows = _different(mixed(evidence.hashes), labels, _tolerance(evidence))
    if len(rows):
        what = "same texts as another row, another label"
        yield evidence.finding(
            "warning", what, rows, "At most one of the labels is right: mend or remove them"
        )


def exchanged_texts(evidence: Evidence) -> Iterator[Finding]:
    """(a, b) and (b, a) with different labels."""
    labels = evidence.labels
    if labels is None or labels.ndim != 1 or len(evidence.needs.texts) != 2:
        return
    left, right = evidence.hashes[:, 0], evidence.hashes[:, 1]
    both = mixed(np.column_stack([np.minimum(left, right), np.maximum(left, right)]))
    rows = _different(both, labels, _tolerance(evidence))
    same = _different(mixed(evidence.hashes[:, :2]), labels, _tolerance(evidence))
    rows = np.setdiff1d(rows, same)  # those are conflicts already
    if not len(rows):
        return
    what = "same texts as another row the other way round, another label"
    if set(evidence.examples.classes) <= set(NLI) and evidence.examples.classes:
        yield evidence.finding("note", what, rows, "That can be right: what entails need not be entailed")
    else:
        yield evidence.finding(
            "warning", what, rows, "Similarity has no direction: one of the labels is wrong"
        )


def _tolerance(evidence: Evidence) -> float:
    return _FAR if evidence.needs.label == "score" else 0.0


def _different(keys: NDArray[np.uint64], labels: NDArray[Any], tolerance: float) -> Rows:
    """Rows that share a key with a row whose label is further away than `tolerance`."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    values = labels[order].astype(np.float64)
    spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    sizes = np.diff(np.append(starts, len(order)))
    return np.sort(order[np.repeat(spread > tolerance, sizes)])

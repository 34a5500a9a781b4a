"""Labels by themselves: all the same, out of their scale, or of very unequal numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemel.training.doctor.diagnosis import Finding, Level, percent
from gemel.training.doctor.evidence import Evidence


def constant_label(evidence: Evidence) -> Iterator[Finding]:
    """One value for all rows: nothing can be learnt."""
    labels = evidence.labels
    if labels is None or len(labels) < 2 or (labels != labels[0]).any():
        return
    value = evidence.label_name(labels[0].item()) if labels.ndim == 1 else "one vector"
    yield Finding(
        "error",
        f"all rows have the same label ({value}), so there is nothing to learn",
        len(labels),
        1.0,
        advice="Was the right column taken for the label? Rows of one kind fit in-batch-ranking",
    )


def out_of_scale(evidence: Evidence) -> Iterator[Finding]:
    """Scores beyond the declared range."""
    if evidence.needs.label != "score" or evidence.labels is None:
        return
    scale = getattr(evidence.examples, "score_range", None)
    low = -1.0 if (scale is None or scale.signed) else 0.0
    rows = np.flatnonzero((evidence.labels < low - 1e-6) | (evidence.labels > 1 + 1e-6))
    if len(rows):
        declared = f" {scale.low:g}..{scale.high:g}" if scale is not None else ""
        what = f"scores outside of the declared scale{declared}"
        yield evidence.finding(
            "error", what, rows, "Declare the true scale with score_range, or remove the rows"
        )


def class_balance(evidence: Evidence) -> Iterator[Finding]:
    """The share of each class."""
    labels = evidence.labels
    if labels is None or evidence.needs.label not in ("class", "binary"):
        return
    names = evidence.examples.classes or ("0", "1")
    shares = np.bincount(labels, minlength=len(names)) / len(labels)
    told = ", ".join(f"{name} {percent(share)}" for name, share in zip(names, shares.tolist(), strict=True))
    if len(names) > 10:
        told = (
            f"{len(names)} classes, the smallest {percent(shares.min())}, the largest {percent(shares.max())}"
        )
    uneven = shares.max() > 0.9 or shares.min() < 0.1 / len(names)
    advice = (
        "A model that always says the most frequent one is hard to beat: add rows of the rare"
        if uneven
        else ""
    )
    yield Finding("warning" if uneven else "note", f"labels: {told}", advice=advice)


def group_sizes(evidence: Evidence) -> Iterator[Finding]:
    """Groups of one row have no positive."""
    if evidence.needs.label != "group" or evidence.labels is None:
        return
    sizes = np.bincount(evidence.labels)
    alone = np.flatnonzero(sizes[evidence.labels] == 1)
    if len(alone):
        most = len(alone) > 0.5 * len(evidence)
        level: Level = "error" if len(alone) == len(evidence) else "warning" if most else "note"
        what = "texts alone in their group, so that no other is their positive"
        yield evidence.finding(
            level, what, alone, "Give a column in which rows that belong together are equal"
        )
    per_batch = evidence.batch_size / max(int((sizes > 0).sum()), 1)
    if len(alone) < len(evidence) and per_batch < 2:
        yield Finding(
            "note",
            f"{int((sizes > 0).sum()):,} groups and batches of {evidence.batch_size}: a random batch has "
            f"{per_batch:.2g} rows of a group",
            advice="A larger batch_size has more positives in it",
        )

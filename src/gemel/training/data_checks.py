"""The checks of the data doctor: what is wrong or suspicious about training data, one function per check.

Each check takes the `Evidence` on a data set (hashes of texts, labels, a sample of rows) and yields findings, with the
number of rows, a few of them, and advice. A new check is a function that is added to `CHECKS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.labels import NLI
from gemel.training.data.store import Batch, Examples, Hashes, Rows, text_hash
from gemel.training.objectives.base import Needs

Level = Literal["note", "warning", "error"]
"""note: worth knowing · warning: probably not intended · error: certainly wrong, training is refused."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    level: Level
    what: str
    count: int | None = None
    """Rows concerned; None if it is about the data set as a whole."""
    share: float | None = None
    """The same as a share of the rows that were checked."""
    examples: tuple[str, ...] = ()
    advice: str = ""

    def rank(self) -> int:
        """0 for the worst level."""
        return ("error", "warning").index(self.level) if self.level in ("error", "warning") else 2

    @property
    def text(self) -> str:
        """What was found, with its size and advice."""
        size = [] if self.count is None else [f"{self.count:,} row{'s'[: self.count != 1]}"]
        size += [] if self.share is None else [percent(self.share)]
        concerned = f" ({', '.join(size)})" if size else ""
        return f"{self.what}{concerned}" + (f". {self.advice}" if self.advice else "")


def percent(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


_CLEAR = 0.1  # difference between two overlaps that counts

_TOLERANCE = 0.2  # between two scores of one pair, rescaled to 0..1: annotators usually differ by less

_PATTERN = 3  # rows that make a pattern

_MIN_ROWS = 30  # for a check that compares words

_MANY = 0.05  # share of repeated rows that is a warning

MOST = 0.5  # share of rows that makes a problem certain

SAMPLE = 2000

_SHOWN = 3

_SHOWN_CHARACTERS = 80

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the checks use of one data set, each computed once."""

    examples: Examples
    needs: Needs
    batch_size: int

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.examples.roles

    @property
    def paired(self) -> bool:
        return len(self.roles) > 1

    @cached_property
    def hashes(self) -> Hashes:
        """(n, columns) equal for equal texts."""
        return self.examples.hashes

    @cached_property
    def folded(self) -> Hashes:
        """(n, columns) equal for texts that differ in case and white space only. One pass over all texts."""
        parts = [
            np.array(
                [[text_hash(fold(text)) for text in column] for column in batch.columns], dtype=np.uint64
            ).T
            for batch in self.examples.batches_in_order()
        ]
        return np.concatenate(parts)

    @property
    def labels(self) -> NDArray[Any] | None:
        return self.examples.labels

    @cached_property
    def sample_rows(self) -> Rows:
        """At most `SAMPLE` rows, the same every time."""
        return np.sort(np.random.default_rng(0).permutation(len(self))[:SAMPLE])

    @cached_property
    def sample(self) -> Batch:
        return self.examples.batch(self.sample_rows)

    @cached_property
    def words(self) -> list[list[frozenset[str]]]:
        """For each column, the words of each row of the sample."""
        return [
            [frozenset(_WORD.findall(text.casefold())) for text in column] for column in self.sample.columns
        ]

    def overlap(self, one: int, other: int) -> NDArray[np.float64]:
        """For each row of the sample, the words that two columns share, divided by all their words."""
        pairs = zip(self.words[one], self.words[other], strict=True)
        return np.array([len(a & b) / max(len(a | b), 1) for a, b in pairs])

    def finding(self, level: Level, what: str, rows: Rows, advice: str = "") -> Finding:
        """A finding about these rows, with the first few as examples."""
        return Finding(level, what, len(rows), len(rows) / len(self), self.show(rows), advice)

    def doubt(self, what: str, by: NDArray[Any], advice: str) -> Finding:
        """A warning about the whole data set; its examples are the rows of the sample that are highest in `by`."""
        worst = self.sample_rows[np.argsort(-by, kind="stable")]
        return Finding("warning", what, examples=self.show(worst), advice=advice)

    def show(self, rows: Rows) -> tuple[str, ...]:
        """The first few rows as text."""
        batch = self.examples.batch(np.asarray(rows[:_SHOWN], dtype=np.int64))
        lines = []
        for row, texts in enumerate(zip(*batch.columns, strict=True)):
            parts = [
                text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
                for text in texts
            ]
            if batch.label is not None and batch.label.ndim == 1:
                parts.append(self.label_name(batch.label[row].item()))
            lines.append(" | ".join(parts))
        return tuple(lines)

    def label_name(self, label: float) -> str:
        return self.examples.classes[int(label)] if self.examples.classes else f"{label:g}"


def fold(text: str) -> str:
    """Lower case, with single spaces between words."""
    return " ".join(text.casefold().split())


def row_keys(hashes: Hashes) -> Hashes:
    """(n,) one hash for the texts of a row, in their order."""
    key = np.zeros(len(hashes), dtype=np.uint64)
    for column in hashes.T:
        key = key * np.uint64(0x9E3779B97F4A7C15) + column
    return key


def constant_label(evidence: Evidence) -> Iterator[Finding]:
    """One value for all rows: nothing can be learned."""
    labels = evidence.labels
    if labels is None or len(labels) < 2 or (labels != labels[0]).any():
        return
    value = evidence.label_name(labels[0].item()) if labels.ndim == 1 else "one vector"
    yield Finding(
        "error",
        f"all rows have the same label ({value}), so there is nothing to learn",
        len(labels),
        1.0,
        advice="Is it the right column? Pairs that all belong together fit in-batch-ranking",
    )


def out_of_scale(evidence: Evidence) -> Iterator[Finding]:
    """Scores beyond the declared range."""
    if evidence.needs.label != "score" or evidence.labels is None:
        return
    scale = evidence.examples.score_range
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
    listed = ", ".join(f"{name} {percent(share)}" for name, share in zip(names, shares.tolist(), strict=True))
    if len(names) > 10:
        listed = (
            f"{len(names)} classes, the smallest {percent(shares.min())}, the largest {percent(shares.max())}"
        )
    uneven = shares.max() > 0.9 or shares.min() < 0.1 / len(names)
    advice = (
        "A model that always predicts the most frequent label is hard to beat: add rows of the rare ones"
        if uneven
        else ""
    )
    yield Finding("warning" if uneven else "note", f"labels: {listed}", advice=advice)


def group_sizes(evidence: Evidence) -> Iterator[Finding]:
    """Groups of one row have no positive."""
    if evidence.needs.label != "group" or evidence.labels is None:
        return
    sizes = np.bincount(evidence.labels)
    alone = np.flatnonzero(sizes[evidence.labels] == 1)
    if len(alone):
        most = len(alone) > 0.5 * len(evidence)
        level: Level = "error" if len(alone) == len(evidence) else "warning" if most else "note"
        what = "texts alone in their group, so that they have no positive"
        yield evidence.finding(
            level, what, alone, "Give a column in which rows that belong together have the same value"
        )
    per_batch = evidence.batch_size / max(int((sizes > 0).sum()), 1)
    if len(alone) < len(evidence) and per_batch < 2:
        yield Finding(
            "note",
            f"{int((sizes > 0).sum()):,} groups and batches of {evidence.batch_size}: a random batch has "
            f"{per_batch:.2g} rows of a group",
            advice="A larger batch_size has more positives in it",
        )


def same_texts(evidence: Evidence) -> Iterator[Finding]:
    """Pairs of equal texts: fine, useless or certainly wrong, depending on the label."""
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
        level: Level = "warning" if len(rows) >= MOST * len(evidence) else "note"
        what = "same text as anchor and positive"
        yield evidence.finding(
            level, what, rows, "They teach nothing; for texts without positives there is simcse"
        )


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
        what = "same text on both sides, not labeled entailment"
        yield evidence.finding("warning", what, rows[~entailed], "A text entails itself: fix the label")


def _scores(evidence: Evidence, rows: Rows) -> Iterator[Finding]:
    assert evidence.labels is not None
    values = evidence.labels.astype(np.float64)
    middle = (values.min() + values.max()) / 2
    low = values[rows] < middle
    if low.sum() >= _PATTERN and low.mean() > MOST:
        yield evidence.finding(
            "error",
            f"the scale is reversed: of {len(rows):,} pairs of equal texts, {int(low.sum()):,} have a low label",
            rows[low],
            "Labels must grow with similarity: if they are distances, reverse them",
        )
    elif low.any():
        what = "same text on both sides, but a low label"
        yield evidence.finding(
            "warning", what, rows[low], "Equal texts are as similar as can be: fix the label"
        )
    if not low.all():
        what = "same text on both sides"
        yield evidence.finding("note", what, rows[~low], "They teach nothing: equal texts have equal vectors")


def same_negatives(evidence: Evidence) -> Iterator[Finding]:
    """A negative that is the row's own anchor or positive."""
    for column, role in enumerate(evidence.roles):
        if role != "negative":
            continue
        for other, name in ((1, "positive"), (0, "anchor")):
            rows = np.flatnonzero(evidence.hashes[:, column] == evidence.hashes[:, other])
            if len(rows):
                level: Level = "error" if len(rows) >= MOST * len(evidence) else "warning"
                what = f"same text as {name} and negative (text column {column + 1})"
                yield evidence.finding(level, what, rows, "Such a row cannot be learned: remove it")


def conflicting_labels(evidence: Evidence) -> Iterator[Finding]:
    """The same texts with different labels."""
    labels = evidence.labels
    if labels is None or labels.ndim != 1 or evidence.needs.label == "margin":
        return
    rows = _different(row_keys(evidence.hashes), labels, _tolerance(evidence))
    if len(rows):
        what = "same texts as another row, another label"
        yield evidence.finding(
            "warning", what, rows, "At most one of the labels is right: fix or remove them"
        )


def exchanged_texts(evidence: Evidence) -> Iterator[Finding]:
    """(a, b) and (b, a) with different labels."""
    labels = evidence.labels
    if labels is None or labels.ndim != 1 or len(evidence.needs.texts) != 2:
        return
    left, right = evidence.hashes[:, 0], evidence.hashes[:, 1]
    both = row_keys(np.column_stack([np.minimum(left, right), np.maximum(left, right)]))
    rows = _different(both, labels, _tolerance(evidence))
    same = _different(row_keys(evidence.hashes[:, :2]), labels, _tolerance(evidence))
    rows = np.setdiff1d(rows, same)  # those are conflicts already
    if not len(rows):
        return
    what = "same texts as another row the other way round, another label"
    if set(evidence.examples.classes) <= set(NLI) and evidence.examples.classes:
        yield evidence.finding("note", what, rows, "That can be right: entailment has a direction")
    else:
        yield evidence.finding(
            "warning", what, rows, "Similarity has no direction: one of the labels is wrong"
        )


def _different(keys: NDArray[np.uint64], labels: NDArray[Any], tolerance: float) -> Rows:
    """Rows that share a key with a row whose label is further away than `tolerance`."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    values = labels[order].astype(np.float64)
    spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    sizes = np.diff(np.append(starts, len(order)))
    return np.sort(order[np.repeat(spread > tolerance, sizes)])


def _tolerance(evidence: Evidence) -> float:
    return _TOLERANCE if evidence.needs.label == "score" else 0.0


def repeated_rows(evidence: Evidence) -> Iterator[Finding]:
    """Exact duplicates: all texts and the label."""
    keys = row_keys(evidence.hashes)
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
            "They count more than once; remove them unless that is intended",
        )


def false_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Rows that share a text: equal texts never meet in a batch, texts that differ in case or white space may."""
    if not evidence.needs.distinct or len(evidence) < 2:
        return
    equal = _others(evidence.hashes[:, :2])
    shared = np.flatnonzero(equal)
    if len(shared):
        chance = _chance(equal, evidence)
        yield evidence.finding(
            "note",
            f"a text in common with another row; in random batches of {evidence.batch_size}, {percent(chance)} of the "
            "rows would meet a false negative",
            shared,
            "They are put into different batches",
        )
    similar = _others(evidence.folded[:, :2]) - equal
    rows = np.flatnonzero(similar > 0)
    if len(rows):
        chance = _chance(np.maximum(similar, 0), evidence)
        yield evidence.finding(
            "warning" if chance > 0.01 else "note",
            "a text in common with another row except for case or white space; they may share a batch, and "
            f"{percent(chance)} of all rows will meet such a false negative in a batch",
            rows,
            "Write equal texts the same way",
        )


def _others(hashes: Hashes) -> NDArray[np.int64]:
    """(n,) about how many other rows share a text with this row in one of these columns."""
    _, where, counts = np.unique(hashes.reshape(-1), return_inverse=True, return_counts=True)
    of_text = counts[where].reshape(hashes.shape)
    own = (hashes[:, :, None] == hashes[:, None, :]).sum(axis=2)  # a text that is twice in its own row
    return np.asarray((of_text - own).max(axis=1))


def _chance(others: NDArray[np.int64], evidence: Evidence) -> float:
    """Expected share of rows that meet one of `others` in a random batch."""
    miss = 1 - np.minimum(others / (len(evidence) - 1), 1)
    return float((1 - miss ** (min(evidence.batch_size, len(evidence)) - 1)).mean())


def crowded_texts(evidence: Evidence) -> Iterator[Finding]:
    """A text in more rows than there are batches: some of its rows fit into no batch."""
    if not evidence.needs.distinct:
        return
    batches = max(len(evidence) // evidence.batch_size, 1)
    texts, counts = np.unique(evidence.hashes, return_counts=True)
    rows = np.flatnonzero((evidence.hashes == texts[counts.argmax()]).any(axis=1))
    if len(rows) > max(batches, 2):
        yield evidence.finding(
            "warning",
            f"one text in common, but an epoch has about {batches:,} batches of {evidence.batch_size}",
            rows,
            "Rows that fit into no batch are left out of the epoch: use a smaller batch_size, or other negatives",
        )


def scores_against_words(evidence: Evidence) -> Iterator[Finding]:
    """Scores, or labels 0 and 1, that fall as texts share more words."""
    if evidence.needs.label not in ("score", "binary") or len(evidence.sample_rows) < _MIN_ROWS:
        return
    overlap = evidence.overlap(0, 1)
    labels = np.asarray(evidence.sample.label, dtype=np.float64)
    if overlap.std() == 0 or labels.std() == 0:
        return
    correlation = float(np.corrcoef(overlap, labels)[0, 1])
    if correlation < -0.1:
        what = f"labels fall as the two texts share more words (correlation {correlation:.2f}, {len(labels):,} rows)"
        yield evidence.doubt(what, overlap, "Is the scale reversed? Labels must grow with similarity")


def positives_against_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Negatives that share more words with the anchor than positives do."""
    if evidence.roles[:3] != ("anchor", "positive", "negative"):
        return
    more = evidence.overlap(0, 2) - evidence.overlap(0, 1)
    clear = np.abs(more) > _CLEAR
    share = float((more[clear] > 0).mean()) if clear.any() else 0.0
    if clear.sum() >= _MIN_ROWS and share > 2 / 3:
        yield evidence.doubt(
            f"in {percent(share)} of {int(clear.sum()):,} rows that differ, the negative shares more words with the "
            "anchor than the positive does",
            more,
            "Are positive and negative swapped? If negatives were chosen by common words, ignore this",
        )


def premises_against_hypotheses(evidence: Evidence) -> Iterator[Finding]:
    """Hypotheses that are longer than their premises: annotators write them shorter."""
    if "entailment" not in evidence.examples.classes or len(evidence.sample_rows) < _MIN_ROWS:
        return
    left, right = ([len(words) for words in column] for column in evidence.words[:2])
    longer = np.array(right) - np.array(left)
    if (longer != 0).sum() >= _MIN_ROWS and (longer > 0).sum() > 0.75 * (longer != 0).sum():
        share = percent(float((longer > 0).mean()))
        what = f"in {share} of {len(longer):,} rows the hypothesis is longer than the premise"
        yield evidence.doubt(what, longer, "Are the two columns swapped? The first text is the premise")


def empty_texts(evidence: Evidence) -> Iterator[Finding]:
    """Texts without a word; white space counts as empty."""
    rows = np.flatnonzero((evidence.folded == np.uint64(text_hash(""))).any(axis=1))
    if len(rows):
        yield evidence.finding(
            "warning", "empty text", rows, "Remove them: an empty text has no meaning to learn"
        )


CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    constant_label,
    out_of_scale,
    same_texts,
    same_negatives,
    scores_against_words,
    positives_against_negatives,
    premises_against_hypotheses,
    conflicting_labels,
    exchanged_texts,
    repeated_rows,
    false_negatives,
    crowded_texts,
    group_sizes,
    class_balance,
    empty_texts,
)

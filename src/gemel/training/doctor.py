"""The doctor before the first step: what is wrong or odd about training data, one idea a file.

All checks, one after the other.

Labels by themselves: all the same, out of their scale, or of very unequal numbers.

Pairs that the model will be scored on and that it is trained on.

Two columns with the same text: fine, useless or certainly wrong, depending on what the label says of it.

Texts without a word, and texts that are longer than the model reads.

Words that two texts share, as a witness: it is a poor judge of one pair and a good one of two thousand.

Rows that stand twice: as they are, with another label, or with the two texts exchanged.

False negatives in a batch, for objectives whose rows are each other's negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.labels import NLI
from gemel.training.data.store import Examples, Hashes, Rows, text_hash
from gemel.training.findings import Diagnosis, Evidence, Finding, Level, fold, mixed, percent, worst_first
from gemel.training.objectives.base import Needs

__all__ = ["Diagnosis", "Finding", "examine"]

_CLEAR = 0.1  # overlaps this far apart differ

_FAR = 0.2  # two scores of one pair, rescaled to 0..1, that are further apart than people usually are

_FEW = 3  # rows that are enough to call a pattern

_LEAST = 30  # rows to judge by

_MANY = 0.05  # of the rows: from here on a repetition is a warning

_MOST = 0.5


def _chance(others: NDArray[np.int64], evidence: Evidence) -> float:
    """Expected share of rows that meet one of so many others in a random batch."""
    miss = 1 - np.minimum(others / (len(evidence) - 1), 1)
    return float((1 - miss ** (min(evidence.batch_size, len(evidence)) - 1)).mean())


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


def _different(keys: NDArray[np.uint64], labels: NDArray[Any], tolerance: float) -> Rows:
    """Rows that share a key with a row whose label is further away than `tolerance`."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    values = labels[order].astype(np.float64)
    spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    sizes = np.diff(np.append(starts, len(order)))
    return np.sort(order[np.repeat(spread > tolerance, sizes)])


def _others(hashes: Hashes) -> NDArray[np.int64]:
    """(n,) about how many other rows have a text of this row in one of these columns."""
    total = np.zeros(len(hashes), dtype=np.int64)
    _, where, counts = np.unique(hashes.reshape(-1), return_inverse=True, return_counts=True)
    of_text = counts[where].reshape(hashes.shape)
    own = (hashes[:, :, None] == hashes[:, None, :]).sum(axis=2)  # a text that stands twice in its own row
    for column in range(hashes.shape[1]):
        total = np.maximum(total, of_text[:, column] - own[:, column])
    return total


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


def _tolerance(evidence: Evidence) -> float:
    return _FAR if evidence.needs.label == "score" else 0.0


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


def crowded_texts(evidence: Evidence) -> Iterator[Finding]:
    """A text in more rows than there are batches: some of its rows have no batch to go to."""
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
            "Rows that find no batch are left out of an epoch: use a smaller batch_size, or other negatives",
        )


def empty_texts(evidence: Evidence) -> Iterator[Finding]:
    """White space alone counts as empty."""
    rows = np.flatnonzero((evidence.folded == np.uint64(text_hash(""))).any(axis=1))
    if len(rows):
        yield evidence.finding("warning", "empty text", rows, "Remove them: nothing stands for nothing")


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


def false_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Rows that share a text: kept apart if it is equal to the letter, not if only case or spaces differ."""
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
            "They are kept in different batches",
        )
    twins = _others(evidence.folded[:, :2]) - equal
    rows = np.flatnonzero(twins > 0)
    if len(rows):
        chance = _chance(np.maximum(twins, 0), evidence)
        yield evidence.finding(
            "warning" if chance > 0.01 else "note",
            "a text in common with another row but for case or white space; they are not kept apart, and "
            f"{percent(chance)} of all rows will meet such a false negative in a batch",
            rows,
            "Write equal texts alike",
        )


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


def positives_against_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Negatives that share more words with the anchor than positives do."""
    if evidence.roles[:3] != ("anchor", "positive", "negative"):
        return
    more = evidence.overlap(0, 2) - evidence.overlap(0, 1)
    clear = np.abs(more) > _CLEAR
    share = float((more[clear] > 0).mean()) if clear.any() else 0.0
    if clear.sum() >= _LEAST and share > 2 / 3:
        yield Finding(
            "warning",
            f"in {percent(share)} of {int(clear.sum()):,} rows that differ, the negative shares more words with the "
            "anchor than the positive does",
            examples=evidence.show(evidence.sample_rows[np.argsort(-more, kind="stable")]),
            advice="Are positive and negative swapped? If negatives were chosen for their words, all is well",
        )


def premises_against_hypotheses(evidence: Evidence) -> Iterator[Finding]:
    """Hypotheses that are longer than their premises: people write them the other way."""
    if "entailment" not in evidence.examples.classes or len(evidence.sample_rows) < _LEAST:
        return
    left, right = ([len(words) for words in column] for column in evidence.words[:2])
    longer = np.array(right) - np.array(left)
    if (longer != 0).sum() >= _LEAST and (longer > 0).sum() > 0.75 * (longer != 0).sum():
        share = percent(float((longer > 0).mean()))
        yield Finding(
            "warning",
            f"in {share} of {len(longer):,} rows the hypothesis is longer than the premise",
            examples=evidence.show(evidence.sample_rows[np.argsort(-longer, kind="stable")]),
            advice="Are the two columns swapped? The first text is the one that entails",
        )


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


def scores_against_words(evidence: Evidence) -> Iterator[Finding]:
    """Scores, or labels 0 and 1, that fall as texts share more words."""
    if evidence.needs.label not in ("score", "binary") or len(evidence.sample_rows) < _LEAST:
        return
    overlap = evidence.overlap(0, 1)
    labels = np.asarray(evidence.sample.label, dtype=np.float64)
    if overlap.std() == 0 or labels.std() == 0:
        return
    together = float(np.corrcoef(overlap, labels)[0, 1])
    if together < -0.1:
        yield Finding(
            "warning",
            f"labels fall as the two texts share more words (correlation {together:.2f}, {len(labels):,} rows)",
            examples=evidence.show(evidence.sample_rows[np.argsort(-overlap, kind="stable")]),
            advice="Is the scale reversed? Labels must grow with similarity",
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


def examine(
    examples: Examples,
    needs: Needs,
    *,
    batch_size: int,
    tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    evaluation_texts: Iterable[tuple[str, str]] = (),
) -> Diagnosis:
    """What is wrong or odd about a data set. Reads every row once and looks closely at a sample of 2,000.

    `evaluation_texts`: the pairs that the model will be scored on. Truncation is looked at if both `tokenizer` and
    `max_length` (marks included) are given. Nothing is changed and nothing is refused: that is the caller's to do.
    """
    evidence = Evidence(examples, needs, batch_size)
    found = [finding for check in CHECKS for finding in check(evidence)]
    if tokenizer is not None and max_length is not None:
        found += cut_texts(evidence, tokenizer, max_length)
    found += leaked_pairs(evidence, evaluation_texts)
    return Diagnosis(examples.name, len(examples), len(evidence.sample_rows), worst_first(found))


def leaked_pairs(evidence: Evidence, pairs: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Pairs in either order, whatever their case and white space."""
    if not evidence.paired:
        return
    held = np.array([sorted((text_hash(fold(a)), text_hash(fold(b)))) for a, b in pairs], dtype=np.uint64)
    if not len(held):
        return
    scored = np.unique(mixed(held))
    leaked = np.zeros(len(evidence), dtype=bool)
    met = np.zeros(len(scored), dtype=bool)
    for column in range(1, len(evidence.roles)):
        keys = mixed(np.sort(evidence.folded[:, [0, column]], axis=1))
        leaked |= np.isin(keys, scored)
        met |= np.isin(scored, keys)
    if not leaked.any():
        return
    level: Level = "error" if met.mean() >= _MOST else "warning"
    part = f"{int(met.sum()):,} of {len(scored):,} ({percent(float(met.mean()))})"
    yield evidence.finding(
        level,
        f"evaluation pairs among the training data: {part}",
        np.flatnonzero(leaked),
        "Scores on them say how well the model remembers: take them out of the training data",
    )


class Tokenizer(Protocol):
    """What is used of `gemel.encoder.tokenizer.TextTokenizer`."""

    @property
    def marks(self) -> Sized: ...

    def content(self, texts: Sequence[str]) -> Sequence[Sized]: ...


def cut_texts(evidence: Evidence, tokenizer: Tokenizer, max_length: int) -> Iterator[Finding]:
    """The share of rows in the sample with a text that is over the limit."""
    room = max_length - len(tokenizer.marks)
    over = np.zeros(len(evidence.sample_rows), dtype=bool)
    longest = 0
    for column in evidence.sample.columns:
        sizes = np.array([len(content) for content in tokenizer.content(column)])
        over |= sizes > room
        longest = max(longest, int(sizes.max(initial=0)) + len(tokenizer.marks))
    if over.any():
        share = float(over.mean())
        yield Finding(
            "warning" if share > 0.05 else "note",
            f"of {len(over):,} rows looked at, some have a text over {max_length} tokens, which is cut; the longest "
            f"has {longest:,}",
            int(over.sum()),
            share,
            evidence.show(evidence.sample_rows[over]),
            "A larger max_length keeps more, if the model can" if share > 0.05 else "",
        )

"""Similar pairs, from texts: encode, compare, and say what each score means. Below the command `gemel pairs`.

Columns for the labels of a relation head: entailment or contradiction, from vectors that are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.model import Model, WithOptions
from gemel.options import EncodeOptions
from gemel.texts.cascade import FastPairs, fast_pairs
from gemel.types import Encoder, Vectors
from gemel.vectors.calibration import Calibration, calibrate
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

_SORTED = 20_000_000  # streamed pairs that are put in order of their scores; more stay by position


@dataclass(frozen=True, kw_only=True)
class PairQuestion:
    """Which pairs, and what to say of them."""

    k: int | None = None
    """How many."""
    min_score: float | None = None
    """How near."""
    expected_false: float | None = None
    """How near, as the number of random pairs that may get in; the score is found by calibration."""
    calibrated: bool = False
    """Say a percentile and the expected number of false pairs with each score."""
    dial: int | None = None
    """Two speeds: candidates of the student for each pair that is asked for."""


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Pairs with their texts and, where asked, what their scores mean."""

    pairs: Pairs
    left: Sequence[str]
    right: Sequence[str]
    relations: Relations | None
    """Probabilities of the labels, when the model keeps its relation head."""
    calibration: Calibration | None
    encoded: int
    """Texts that the model encoded."""

    def rows(
        self, left_ids: Sequence[str] | None = None, right_ids: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """One dictionary a pair, best first: score, what it means, labels, ids (else positions) and texts."""
        second = left_ids if right_ids is None and self.right is self.left else right_ids
        for place in range(len(self.pairs)):
            score = float(self.pairs.score[place])
            one, other = int(self.pairs.left[place]), int(self.pairs.right[place])
            row: dict[str, Any] = {"score": score}
            if self.calibration is not None:
                row["percentile"] = self.calibration.percentile(score)
                row["expected_false"] = self.calibration.expected_false(score)
            if self.relations is not None:
                row |= self.relations.row(place)
            row["left"] = one if left_ids is None else left_ids[one]
            row["right"] = other if second is None else second[other]
            yield {**row, "left_text": self.left[one], "right_text": self.right[other]}

    def summary(self) -> str:
        """One line for a person."""
        line = self.pairs.summary()
        return line if self.pairs.recall is None else f"{line}, {self.encoded:,} texts encoded"


def pairs_of_texts(
    model: Model,
    texts: Sequence[str],
    question: PairQuestion,
    *,
    other: Sequence[str] | None = None,
    options: EncodeOptions | None = None,
    student: Encoder | None = None,
    out: Path | None = None,
    find: Callable[..., Pairs] = similar_pairs,
) -> TextPairs:
    """The pairs that `question` asks for, within `texts` or between them and `other`.

    student: with a `dial`, the fast encoder that proposes candidates. out: a folder for pairs that do not fit into
    memory, as in `similar_pairs`. find: what compares the vectors, with the arguments of `similar_pairs`.
    """
    settings = _checked(question, options or EncodeOptions(), student)
    first = check_texts(texts)
    second = None if other is None else check_texts(other, "other")
    encoder = WithOptions(model, settings)
    if question.dial is not None and student is not None and question.k is not None:
        return _fast(encoder, student, first, second, question)
    vectors = encoder.encode([*first, *(second or [])])
    left, right = vectors[: len(first)], None if second is None else vectors[len(first) :]
    calibration = None
    if question.calibrated or question.expected_false is not None:
        calibration = calibrate(left, other=right)
    found = find(
        left,
        k=question.k,
        min_score=_cut(question, calibration),
        other=right,
        threads=settings.threads,
        progress=settings.progress,
        out=out,
    )
    found = _best_first(found) if out is not None and question.k is None else found
    relations = relations_of(model, settings, left, found.left, left if right is None else right, found.right)
    return TextPairs(
        found,
        first,
        first if second is None else second,
        relations,
        calibration,
        len(set(first) | set(second or [])),
    )


def _fast(
    encoder: WithOptions,
    student: Encoder,
    first: list[str],
    second: list[str] | None,
    question: PairQuestion,
) -> TextPairs:
    k, dial, settings = question.k or 1, question.dial or 1, encoder.options
    fast = fast_pairs(encoder, student, first, k=k, dial=dial, other=second, threads=settings.threads)
    calibration = _from_sample(fast, len(first), None if second is None else len(second), question)
    floor, pairs = _cut(question, calibration), fast.pairs
    if floor is not None:
        keep = pairs.score >= floor
        pairs = replace(pairs, score=pairs.score[keep], left=pairs.left[keep], right=pairs.right[keep])
    relations = relations_of(encoder.model, settings, fast.left, pairs.left, fast.right, pairs.right)
    encoded = len(fast.left.vectors) + (0 if second is None else len(fast.right.vectors))
    return TextPairs(pairs, first, first if second is None else second, relations, calibration, encoded)


def _from_sample(
    fast: FastPairs, rows: int, columns: int | None, question: PairQuestion
) -> Calibration | None:
    """Calibration on the sampled texts, for the number of pairs of the whole corpus."""
    if not question.calibrated and question.expected_false is None:
        return None
    sample, across = fast.sample
    if across is None or columns is None:
        return replace(calibrate(fast.left[sample]), rows=(rows,), total=rows * (rows - 1) // 2)
    found = calibrate(fast.left[sample], other=fast.right[across])
    return replace(found, rows=(rows, columns), total=rows * columns)


def _cut(question: PairQuestion, calibration: Calibration | None) -> float | None:
    if question.expected_false is None or calibration is None:
        return question.min_score
    found = calibration.threshold(question.expected_false)
    return found if question.min_score is None else max(found, question.min_score)


def _best_first(pairs: Pairs) -> Pairs:
    """Streamed pairs come by position; those that can be sorted are."""
    if len(pairs) > _SORTED:
        return pairs
    score: Vectors = np.asarray(pairs.score)
    order: NDArray[np.int64] = np.lexsort((pairs.right, pairs.left, -score))
    return replace(pairs, score=score[order], left=pairs.left[order], right=pairs.right[order])


def _checked(question: PairQuestion, options: EncodeOptions, student: Encoder | None) -> EncodeOptions:
    if options.output not in ("float32", "float16"):
        raise InputError(f"pairs are compared as float32 vectors; output {options.output!r} is for storing")
    if question.k is None and question.min_score is None and question.expected_false is None:
        raise InputError("pairs need k (how many), min_score or expected_false (how near)")
    if (question.dial is None) != (student is None):
        raise InputError("two speeds need both a dial and a student")
    if question.dial is not None and question.k is None:
        raise InputError("two speeds need k: the student proposes k times the dial candidates")
    return options


_BLOCK = 4096  # pairs at once: their vectors are copied


class ByPosition(Protocol):
    """Vectors of texts by their positions: an array, or some of one."""

    def __getitem__(self, positions: NDArray[np.int64], /) -> Vectors: ...


@dataclass(frozen=True, eq=False)
class Relations:
    """How left relates to right, pair by pair."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(pairs, labels)"""

    def row(self, place: int) -> dict[str, float]:
        """Columns p_LABEL of one pair."""
        values = self.probabilities[place].tolist()
        return {f"p_{label}": value for label, value in zip(self.labels, values, strict=True)}


def relations_of(
    model: Model,
    options: EncodeOptions,
    left: ByPosition,
    rows: NDArray[np.int64],
    right: ByPosition,
    columns: NDArray[np.int64],
) -> Relations | None:
    """For pairs of positions; None where the model keeps no head, or the options give vectors it does not know."""
    known = options.dim is None and options.normalize in (None, model.checkpoint.normalize)
    if model.labels is None or not known:
        return None
    out = np.empty((len(rows), len(model.labels)), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = model.relation_of(left[rows[block]], right[columns[block]])
    return Relations(model.labels, out)

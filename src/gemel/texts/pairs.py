"""Similar pairs from texts: encode, compare, and say what each score means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.model import Model
from gemel.options import EncodeKeywords, EncodeOptions
from gemel.texts.cascade import Cascade, CascadePairs
from gemel.types import Encoder, Vectors
from gemel.vectors.calibration import Calibration, calibrate
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

_SORTED = 20_000_000  # streamed pairs that are sorted by score; more stay sorted by position

_BLOCK = 4096  # pairs whose relations are computed at once: their vectors are copied


def find_pairs(  # noqa: PLR0913 - one question, and how to answer it
    model: Model,
    texts: Sequence[str],
    *,
    k: int | None = None,
    min_score: float | None = None,
    expected_false: float | None = None,
    other: Sequence[str] | None = None,
    calibrated: bool = False,
    student: Encoder | None = None,
    student_candidates: int = 10,
    options: EncodeOptions | None = None,
    out: Path | None = None,
    find: Callable[..., Pairs] = similar_pairs,
    **keywords: Unpack[EncodeKeywords],
) -> TextPairs:
    """The most similar pairs of `texts`, or of one of them and one of `other`; every pair is compared.

    k: how many pairs. min_score: the lowest cosine. expected_false: the lowest cosine, as the number of random pairs
    that may reach it. At least one of the three.
    calibrated: give each pair the percentile of its score and the number of random pairs expected to reach it.
    student: with `k`, a fast encoder that proposes `student_candidates` pairs for each result; the model encodes only
    their texts, and the recall is measured.
    out: a folder for pairs that do not fit into memory, as in `gemel.similar_pairs`.
    find: compares the vectors, called as `gemel.similar_pairs`.
    Keywords are the fields of `EncodeOptions`, as for `encode`.
    """
    settings = EncodeOptions.of(options, keywords)
    if settings.output not in ("float32", "float16"):
        raise InputError(f"pairs are compared as float32 vectors; output {settings.output!r} is for storing")
    if k is None and min_score is None and expected_false is None:
        raise InputError("pairs need k (how many), min_score or expected_false (how near)")
    first = check_texts(texts)
    second = None if other is None else check_texts(other, "other")
    encoder = model.with_options(settings)
    calibration = None
    if student is not None:
        if k is None:
            raise InputError("a student needs k: it proposes student_candidates pairs for each of k results")
        cascade = Cascade(encoder, student, student_candidates, threads=settings.threads).pairs(
            first, k, second
        )
        if calibrated or expected_false is not None:
            calibration = _calibrate_sample(cascade, len(first), None if second is None else len(second))
        pairs = _above(cascade.pairs, _lowest_score(min_score, expected_false, calibration))
        relations = relations_of(model, settings, cascade.left, pairs.left, cascade.right, pairs.right)
        encoded = len(cascade.left.vectors) + (0 if second is None else len(cascade.right.vectors))
    else:
        vectors = np.asarray(encoder.encode([*first, *(second or [])]), np.float32)
        left, right = vectors[: len(first)], None if second is None else vectors[len(first) :]
        if calibrated or expected_false is not None:
            calibration = calibrate(left, other=right)
        pairs = find(
            left,
            k=k,
            min_score=_lowest_score(min_score, expected_false, calibration),
            other=right,
            threads=settings.threads,
            progress=settings.progress,
            out=out,
        )
        pairs = _best_first(pairs) if out is not None and k is None else pairs
        columns = left if right is None else right
        relations = relations_of(model, settings, left, pairs.left, columns, pairs.right)
        encoded = len(set(first) | set(second or []))
    return TextPairs(pairs, first, first if second is None else second, relations, calibration, encoded)


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Pairs with their texts and, if calibrated, what their scores mean."""

    pairs: Pairs
    """Scores and positions as arrays."""
    left: Sequence[str]
    right: Sequence[str]
    relations: Relations | None
    """Probabilities of the labels, when the model has a classification head."""
    calibration: Calibration | None
    encoded: int
    """Texts that the model encoded."""

    def __len__(self) -> int:
        return len(self.pairs)

    def rows(
        self, left_ids: Sequence[str] | None = None, right_ids: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """One dictionary per pair, best first: score, what it means, labels, ids (else positions) and texts."""
        second = left_ids if right_ids is None and self.right is self.left else right_ids
        for entry in range(len(self.pairs)):
            score = float(self.pairs.score[entry])
            one, other = int(self.pairs.left[entry]), int(self.pairs.right[entry])
            row: dict[str, Any] = {"score": score}
            if self.calibration is not None:
                row["percentile"] = self.calibration.percentile(score)
                row["expected_false"] = self.calibration.expected_false(score)
            if self.relations is not None:
                row |= self.relations.row(entry)
            row["left"] = one if left_ids is None else left_ids[one]
            row["right"] = other if second is None else second[other]
            yield {**row, "left_text": self.left[one], "right_text": self.right[other]}

    def summary(self) -> str:
        """A description in one line."""
        line = self.pairs.summary()
        return line if self.pairs.recall is None else f"{line}, {self.encoded:,} texts encoded"


def _calibrate_sample(cascade: CascadePairs, rows: int, columns: int | None) -> Calibration:
    """Calibration on the sampled texts, for the number of pairs of the whole corpus."""
    sample, other_sample = cascade.sample
    if other_sample is None or columns is None:
        return replace(calibrate(cascade.left[sample]), rows=(rows,), total=rows * (rows - 1) // 2)
    calibration = calibrate(cascade.left[sample], other=cascade.right[other_sample])
    return replace(calibration, rows=(rows, columns), total=rows * columns)


def _lowest_score(
    min_score: float | None, expected_false: float | None, calibration: Calibration | None
) -> float | None:
    if expected_false is None or calibration is None:
        return min_score
    threshold = calibration.threshold(expected_false)
    return threshold if min_score is None else max(threshold, min_score)


def _above(pairs: Pairs, lowest: float | None) -> Pairs:
    if lowest is None:
        return pairs
    keep = pairs.score >= lowest
    return replace(pairs, score=pairs.score[keep], left=pairs.left[keep], right=pairs.right[keep])


def _best_first(pairs: Pairs) -> Pairs:
    """Streamed pairs, which are sorted by position, sorted by score if they are not too many."""
    if len(pairs) > _SORTED:
        return pairs
    score: Vectors = np.asarray(pairs.score)
    order: NDArray[np.int64] = np.lexsort((pairs.right, pairs.left, -score))
    return replace(pairs, score=score[order], left=pairs.left[order], right=pairs.right[order])


class VectorsByPosition(Protocol):
    """Vectors of texts by the positions of the texts: an array, or `SomeVectors`."""

    def __getitem__(self, positions: NDArray[np.int64], /) -> Vectors: ...


@dataclass(frozen=True, eq=False)
class Relations:
    """Probabilities of the labels of a classification head (entailment, contradiction, ...), pair by pair."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(pairs, labels)"""

    def row(self, pair: int) -> dict[str, float]:
        """Columns p_LABEL of one pair."""
        values = self.probabilities[pair].tolist()
        return {f"p_{label}": value for label, value in zip(self.labels, values, strict=True)}


def relations_of(
    model: Model,
    options: EncodeOptions,
    left: VectorsByPosition,
    rows: NDArray[np.int64],
    right: VectorsByPosition,
    columns: NDArray[np.int64],
) -> Relations | None:
    """For pairs of positions; None if the model has no head, or the options give vectors it was not trained on."""
    usual = options.dim is None and options.normalize in (None, model.checkpoint.normalize)
    if model.labels is None or not usual:
        return None
    out = np.empty((len(rows), len(model.labels)), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = model.relation_of(left[rows[block]], right[columns[block]])
    return Relations(model.labels, out)

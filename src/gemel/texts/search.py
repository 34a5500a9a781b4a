"""Search and similar pairs from texts: encode, find the nearest, fuse with words, rerank, say what a score means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from gemel.cross_model import CrossModel
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.index.query import Answer, Hit, ScoredBy
from gemel.model import Model
from gemel.options import CrossOptions, EncodeKeywords, EncodeOptions, check_count
from gemel.terminal import counted
from gemel.texts.cascade import (
    Cascade,
    CascadeHits,
    CascadePairs,
    Positions,
    SomeVectors,
    in_blocks,
)
from gemel.texts.late_model import LateModel
from gemel.types import Encoder, ShownResult, Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.calibration import Calibration, PrecisionThreshold, calibrate, precision_threshold
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import row_scores

_CANDIDATES = 50  # texts per query that fusion and reranking look at

_SORTED = 20_000_000  # streamed pairs that are sorted by score; more stay sorted by position


def search_texts(  # noqa: PLR0913 - one question, and how to answer it
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str],
    k: int = 10,
    *,
    ids: Sequence[str] | None = None,
    hybrid: bool = False,
    rerank: CrossModel | LateModel | None = None,
    candidates: int | None = None,
    calibrated: bool = False,
    student: Encoder | None = None,
    student_candidates: int = 10,
    options: EncodeOptions | None = None,
    find: Callable[..., Hits] = search,
    **keywords: Unpack[EncodeKeywords],
) -> TextHits:
    """The `k` best of `texts` for each query; every text is compared unless there is a `student`.

    Keywords are the fields of `EncodeOptions`, as for `encode`. The prompts of the checkpoint for queries and documents
    are used unless the options name one.

    ids: names of the texts in the results; None: their positions.
    hybrid: fuse the ranking by vectors with one by words (BM25).
    rerank: a cross-encoder or a model for late interaction that sorts the candidates.
    candidates: texts per query that fusion and reranking look at; None: 50, or k if that is more.
    calibrated: give each result the percentile of its cosine among random pairs of the texts.
    student: a fast encoder that proposes `student_candidates` texts for each result; the model encodes only those, and
    the recall is measured.
    find: compares queries with texts, called as `gemel.search`.
    """
    started = perf_counter()
    settings = EncodeOptions.of(options, keywords)
    _check_search(k, candidates, settings)
    query_texts, documents = check_texts(queries, "queries"), check_texts(texts, "texts")
    for name, given in (("queries", query_texts), ("texts", documents)):
        if not given:
            raise InputError(f"{name} is empty: there is nothing to search")
    if ids is not None and len(ids) != len(documents):
        raise InputError(f"there are {len(documents)} texts but {len(ids)} ids")
    width = (candidates or max(k, _CANDIDATES)) if hybrid or rerank is not None else k
    width = min(width, len(documents))
    query_model = model.with_options(model.options_for("query", settings))
    document_model = model.with_options(model.options_for("document", settings))
    if student is None:
        vectors = np.asarray(query_model.encode(query_texts), np.float32)
        corpus = np.asarray(document_model.encode(documents), np.float32)
        hits = find(vectors, corpus, width, threads=settings.threads)
        first = CascadeHits(hits, vectors, SomeVectors.all(corpus))
    else:
        cascade = Cascade(document_model, student, student_candidates, query_model, settings.threads)
        first = cascade.search(query_texts, documents, width)
    hits = first.hits
    if hybrid:
        hits = fuse([hits, BM25Index(documents).rank(query_texts, width)], width)
    if rerank is not None:
        hits = _reranked(rerank, query_texts, documents, hits, settings)
    hits = Hits(hits.index[:, :k], hits.score[:, :k], recall=first.hits.recall)
    # Words may have found texts that were no candidates of the student.
    encoded = first.corpus.plus(document_model, documents, hits.index[hits.index >= 0])
    rows = np.repeat(np.arange(len(query_texts)), hits.index.shape[1])
    columns = np.maximum(hits.index.ravel(), 0)  # the scores at -1 are never shown
    return TextHits(
        hits=hits,
        cosine=in_blocks(row_scores, first.queries, rows, encoded, columns).reshape(hits.index.shape),
        scored_by=_scored_by(rerank, hybrid),
        queries=query_texts,
        texts=documents,
        ids=ids,
        relations=relations_of(model, settings, first.queries, rows, encoded, columns),
        calibration=calibrate(encoded.vectors) if calibrated else None,
        encoded=len(encoded.vectors),
        seconds=perf_counter() - started,
    )


def _scored_by(rerank: CrossModel | LateModel | None, hybrid: bool) -> ScoredBy:
    if rerank is not None:
        return "late" if isinstance(rerank, LateModel) else "cross"
    return "fusion" if hybrid else "cosine"


@dataclass(frozen=True, eq=False)
class TextHits(ShownResult):
    """The results of `search_texts`: an `Answer` per query, of the same `Hit`s that an index gives."""

    hits: Hits
    """Positions and scores as arrays."""
    cosine: Vectors
    """(q, k) of the model's vectors, whatever the results were sorted by."""
    scored_by: ScoredBy
    queries: Sequence[str]
    texts: Sequence[str]
    ids: Sequence[str] | None
    relations: Relations | None
    """How query relates to text, row after row, when the model has a classification head."""
    calibration: Calibration | None
    encoded: int
    """Texts that the model encoded."""
    seconds: float

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[Answer]:
        return (self[query] for query in range(len(self)))

    def __getitem__(self, query: int) -> Answer:
        """The results of one query, best first."""
        found = tuple(
            Hit(
                id=str(position) if self.ids is None else self.ids[position],
                score=float(self.hits.score[query, rank]),
                cosine=float(self.cosine[query, rank]),
                text=self.texts[position],
                part=0,
                fields={},
            )
            for rank, position in enumerate(self.hits.index[query].tolist())
            if position >= 0
        )
        return Answer(found, self.scored_by, exact=self.hits.recall is None, seconds=self.seconds)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per result: query, rank, score, cosine and percentile where known, labels, id, text."""
        width = self.hits.index.shape[1]
        for entry, position in enumerate(self.hits.index.ravel().tolist()):
            if position < 0:
                continue
            query, rank = divmod(entry, width)
            row: dict[str, Any] = {"query": self.queries[query], "rank": rank + 1}
            row["score"] = float(self.hits.score[query, rank])
            if self.scored_by != "cosine":
                row["cosine"] = float(self.cosine[query, rank])
            if self.calibration is not None:
                row["percentile"] = self.calibration.percentile(float(self.cosine[query, rank]))
            if self.relations is not None:
                row |= self.relations.row(entry)
            row["id"] = position if self.ids is None else self.ids[position]
            yield {**row, "text": self.texts[position]}

    def summary(self) -> str:
        """A description in one line."""
        queries, texts = counted(len(self), "query", "queries"), counted(len(self.texts), "text")
        parts = [f"{queries}, {texts}, scored by {self.scored_by}"]
        if self.hits.recall is None:
            parts.append("every text compared")
        else:
            parts.append(f"recall about {self.hits.recall:.1%} (measured on a sample)")
        if self.encoded < len(set(self.texts)):
            parts.append(f"{counted(self.encoded, 'text')} encoded")
        return ", ".join(parts)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return self.rows()


def _check_search(k: int, candidates: int | None, options: EncodeOptions) -> None:
    check_count("k", k)
    if candidates is not None:
        check_count("candidates", candidates)
        if candidates < k:
            raise InputError(f"candidates must be at least k={k}, got {candidates}")
    if options.output not in ("float32", "float16"):
        raise InputError(f"search scores float32 vectors; output {options.output!r} is for storing")


def _reranked(
    reranker: CrossModel | LateModel,
    queries: list[str],
    texts: list[str],
    hits: Hits,
    settings: EncodeOptions,
) -> Hits:
    """The same texts sorted by the reranker; ties keep their order."""
    rows, columns = np.nonzero(hits.index >= 0)
    pairs = [queries[row] for row in rows], [texts[position] for position in hits.index[rows, columns]]
    options = CrossOptions(on_long="truncate", threads=settings.threads, progress=settings.progress)
    score = np.full(hits.index.shape, -np.inf, dtype=np.float32)
    score[rows, columns] = reranker.scores(*pairs, options)
    order = np.argsort(-score, axis=1, kind="stable")
    return Hits(np.take_along_axis(hits.index, order, 1), np.take_along_axis(score, order, 1))


def find_pairs(  # noqa: PLR0913 - one question, and how to answer it
    model: Model,
    texts: Sequence[str],
    *,
    k: int | None = None,
    min_score: float | None = None,
    expected_false: float | None = None,
    labels: Sequence[tuple[str, str, int]] | None = None,
    target_precision: float | None = None,
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
    that may reach it. At least one of the three, or labels.
    labels: (text, text, 0 or 1) of some pairs. The lowest cosine is the one above which a share of `target_precision`
    (0 to 1) of the pairs is estimated to be correct.
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
    _check_limits(k, min_score, expected_false, labels, target_precision, student)
    first = check_texts(texts)
    second = None if other is None else check_texts(other, "other")
    encoder = model.with_options(settings)
    calibration, precision = None, None
    if student is not None:
        assert k is not None, "_check_limits"
        cascade = Cascade(encoder, student, student_candidates, threads=settings.threads).pairs(
            first, k, second
        )
        if calibrated or expected_false is not None:
            calibration = _calibrate_sample(
                cascade, *map(len, [first] if second is None else [first, second])
            )
        pairs = _above(cascade.pairs, _lowest_score(min_score, expected_false, calibration))
        relations = relations_of(model, settings, cascade.left, pairs.left, cascade.right, pairs.right)
        encoded = len(cascade.left.vectors) + (0 if second is None else len(cascade.right.vectors))
    else:
        vectors = np.asarray(encoder.encode([*first, *(second or [])]), np.float32)
        left, right = vectors[: len(first)], None if second is None else vectors[len(first) :]
        if calibrated or expected_false is not None:
            calibration = calibrate(left, other=right)
        lowest = _lowest_score(min_score, expected_false, calibration)
        compare = partial(find, left, other=right, threads=settings.threads, progress=settings.progress)
        if labels is None or target_precision is None:
            pairs = compare(k=k, min_score=lowest, out=out)
            pairs = _best_first(pairs) if out is not None and k is None else pairs
        else:
            scored = _score_labels(encoder, labels)
            pairs, precision = _by_labels(compare, scored, target_precision, lowest, 4 * len(vectors))
            pairs = replace(pairs, score=pairs.score[:k], left=pairs.left[:k], right=pairs.right[:k])
        columns = left if right is None else right
        relations = relations_of(model, settings, left, pairs.left, columns, pairs.right)
        encoded = len(set(first) | set(second or []))
    return TextPairs(
        pairs, first, first if second is None else second, relations, calibration, encoded, precision
    )


@dataclass(frozen=True, eq=False)
class TextPairs(ShownResult):
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
    precision: PrecisionThreshold | None = None
    """The threshold that was chosen from labels."""

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
            if self.precision is not None:
                row["probability"] = self.precision.curve.at(score)
            if self.relations is not None:
                row |= self.relations.row(entry)
            row["left"] = one if left_ids is None else left_ids[one]
            row["right"] = other if second is None else second[other]
            yield {**row, "left_text": self.left[one], "right_text": self.right[other]}

    def summary(self) -> str:
        """A description in one line."""
        line = self.pairs.summary()
        return line if self.pairs.recall is None else f"{line}, {counted(self.encoded, 'text')} encoded"

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return self.rows()


def _check_limits(
    k: int | None,
    min_score: float | None,
    expected_false: float | None,
    labels: Sequence[tuple[str, str, int]] | None,
    target_precision: float | None,
    student: Encoder | None,
) -> None:
    if (labels is None) != (target_precision is None):
        raise InputError(
            "labels and target_precision belong together: the labels of some pairs, and the share of correct pairs "
            "that is requested, such as 0.9"
        )
    if k is None and min_score is None and expected_false is None and labels is None:
        raise InputError("pairs need k (how many), min_score or expected_false (how near), or labels")
    if student is not None and labels is not None:
        raise InputError("labels need the scores of all pairs, which a student (--fast) does not compute")
    if student is not None and k is None:
        raise InputError("a student needs k: it proposes student_candidates pairs for each of k results")


def _score_labels(encoder: Encoder, labels: Sequence[tuple[str, str, int]]) -> list[tuple[float, int]]:
    """The cosine of each labeled pair of texts, with its label."""
    left = check_texts([row[0] for row in labels], "texts of labels")
    right = check_texts([row[1] for row in labels], "texts of labels")
    if not left:
        raise InputError("there are no labels. Give (text, text, 0 or 1) of some pairs")
    vectors = np.asarray(encoder.encode([*left, *right]), np.float32)
    scores = row_scores(vectors[: len(left)], vectors[len(left) :])
    return [(float(score), row[2]) for score, row in zip(scores, labels, strict=True)]


def _by_labels(
    compare: Callable[..., Pairs],
    scored: list[tuple[float, int]],
    target: float,
    lowest: float | None,
    count: int,
) -> tuple[Pairs, PrecisionThreshold]:
    """The pairs above the threshold that the labels give, best first.

    `count` best pairs are looked at first, and more only if the threshold may be below them: pairs as near as the
    lowest label may be too many for memory.
    """
    floor = max(min(score for score, _ in scored), -1.0 if lowest is None else lowest)
    while True:
        pairs = compare(k=count, min_score=floor)
        precision = precision_threshold(scored, pairs.score, target)
        if precision.pairs < len(pairs) or len(pairs) < count:
            return _above(pairs, precision.threshold), precision
        count *= 4


def _calibrate_sample(cascade: CascadePairs, *counts: int) -> Calibration:
    """Calibration on the sampled texts, for the number of pairs of the whole corpus: `counts` texts of each set."""
    other = cascade.right[cascade.samples[1]] if len(counts) > 1 else None
    total = counts[0] * counts[1] if len(counts) > 1 else counts[0] * (counts[0] - 1) // 2
    return replace(calibrate(cascade.left[cascade.samples[0]], other=other), rows=counts, total=total)


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


@dataclass(frozen=True, eq=False)
class Relations(ShownResult):
    """Probabilities of the labels of a classification head (entailment, contradiction, ...), pair by pair."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(pairs, labels)"""

    def row(self, pair: int) -> dict[str, float]:
        """Columns p_LABEL of one pair."""
        values = self.probabilities[pair].tolist()
        return {f"p_{label}": value for label, value in zip(self.labels, values, strict=True)}

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return ({"pair": pair, **self.row(pair)} for pair in range(len(self.probabilities)))


def relations_of(
    model: Model,
    options: EncodeOptions,
    left: Vectors | SomeVectors,
    rows: Positions,
    right: Vectors | SomeVectors,
    columns: Positions,
) -> Relations | None:
    """For pairs of positions; None if the model has no head, or the options give vectors it was not trained on."""
    usual = options.dim is None and options.normalize in (None, model.checkpoint.normalize)
    if model.labels is None or not usual:
        return None
    return Relations(model.labels, in_blocks(model.relation_of, left, rows, right, columns))

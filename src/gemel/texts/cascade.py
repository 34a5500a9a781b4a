"""Candidates, then exact rescoring: a fast student proposes texts, the model encodes only those and compares them all.

This is the one approximate search from texts. Its recall is measured on a sample of the texts, all of which the model
encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import recall_of
from gemel.options import check_count
from gemel.types import Encoder, Vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.search import Hits, search

Positions = NDArray[np.int64]

_BLOCK = 4096  # pairs scored at once

_FEWEST_PAIRS = 10  # true pairs that a measured recall should rest on

_FEWEST_HITS = 3  # and true hits per query

_QUERIES = 50  # queries that measure the recall of a search


@dataclass(frozen=True)
class Cascade:
    """A student that proposes candidates and the model that rescores them."""

    model: Encoder
    student: Encoder
    candidates: int
    """Proposals of the student for each result."""
    query_model: Encoder | None = None
    """Encodes queries; None: as the other texts."""
    threads: int | None = None
    seed: int = 0
    """Of the sample."""

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)

    def search(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> CascadeHits:
        """The `k` best texts per query, by the model, of all that the student proposes for any query."""
        sample = _sample(len(corpus), np.random.default_rng(self.seed))
        rough_queries, rough_corpus = _encode(self.student, queries), _encode(self.student, corpus)
        proposed = search(rough_queries, rough_corpus, k * self.candidates, threads=self.threads).index
        encoded = SomeVectors.of(self.model, corpus, np.concatenate([proposed.ravel(), sample]))
        vectors = _encode(self.query_model or self.model, queries)
        best = search(vectors, encoded.vectors, k, threads=self.threads)
        recall = self._search_recall(
            (rough_queries, rough_corpus[sample]), (vectors, encoded[sample]), k * len(sample) / len(corpus)
        )
        hits = Hits(encoded.positions[best.index], best.score, recall=recall)
        return CascadeHits(hits, vectors, encoded)

    def pairs(self, texts: Sequence[str], k: int, other: Sequence[str] | None = None) -> CascadePairs:
        """The `k` best pairs, by the model, of the texts in the best pairs of the student."""
        rng = np.random.default_rng(self.seed)
        sides = [texts] if other is None else [texts, other]
        samples = [_sample(len(side), rng) for side in sides]
        rough = [_encode(self.student, side) for side in sides]
        proposed = _in_pairs(self._best_pairs(rough, k * self.candidates), len(sides))
        encoded = [
            SomeVectors.of(self.model, side, np.concatenate(positions))
            for side, *positions in zip(sides, proposed, samples, strict=True)
        ]
        # The best pairs of all texts that have vectors: more than the candidates, without further encoding.
        best = self._best_pairs([some.vectors for some in encoded], k)
        parts = [len(sample) / max(len(side), 1) for sample, side in zip(samples, sides, strict=True)]
        recall = self._pair_recall(
            [vectors[sample] for vectors, sample in zip(rough, samples, strict=True)],
            [some[sample] for some, sample in zip(encoded, samples, strict=True)],
            k * parts[0] * parts[-1],
        )
        left, right = encoded[0].positions[best.left], encoded[-1].positions[best.right]
        pairs = replace(best, left=left, right=right, complete=False, recall=recall)
        return CascadePairs(pairs, encoded[0], encoded[-1], samples)

    def _best_pairs(self, sides: Sequence[Vectors], k: int) -> Pairs:
        """Within the one array of vectors, or between the two."""
        return similar_pairs(sides[0], k=k, other=None if len(sides) == 1 else sides[1], threads=self.threads)

    def _search_recall(
        self, rough: tuple[Vectors, Vectors], exact: tuple[Vectors, Vectors], depth: float
    ) -> float:
        """Within the sample: of the best `depth` texts per query by the model, the share that the student proposes.

        Sampled texts are used as queries where there are few queries.
        """
        count = min(len(rough[0]), _QUERIES)
        extra = min(_QUERIES - count, len(rough[1]) // 2)
        rough_queries, queries = (
            np.concatenate([given[:count], sample[:extra]]) for given, sample in (rough, exact)
        )
        k = max(_FEWEST_HITS, round(depth))
        truth = search(queries, exact[1][extra:], k, threads=self.threads).index
        proposed = search(rough_queries, rough[1][extra:], k * self.candidates, threads=self.threads).index
        return recall_of(proposed, truth)

    def _pair_recall(self, rough: Sequence[Vectors], exact: Sequence[Vectors], depth: float) -> float | None:
        """Within the sample: of the best `depth` pairs by the model, the share whose texts the student proposes."""
        k = max(_FEWEST_PAIRS, round(depth))
        truth = self._best_pairs(exact, k)
        proposed = _in_pairs(self._best_pairs(rough, k * self.candidates), len(rough))
        found = np.isin(truth.left, proposed[0]) & np.isin(truth.right, proposed[-1])
        return float(found.mean()) if len(truth) else None


@dataclass(frozen=True, eq=False)
class CascadeHits:
    """Hits, and the vectors that were computed for them."""

    hits: Hits
    queries: Vectors
    corpus: SomeVectors


@dataclass(frozen=True, eq=False)
class CascadePairs:
    """Pairs, and the vectors that were computed for them: of candidates and of the sample."""

    pairs: Pairs
    left: SomeVectors
    right: SomeVectors
    samples: list[Positions]
    """Positions of the texts on which the recall was measured, of each set of texts."""


@dataclass(frozen=True, eq=False)
class SomeVectors:
    """The model's vectors of some of the texts, by the positions of the texts."""

    row: Positions
    """(texts,) row in `vectors`, -1 where there is none."""
    vectors: Vectors

    @classmethod
    def of(cls, model: Encoder, texts: Sequence[str], positions: Positions) -> SomeVectors:
        """Encode the texts at these positions."""
        chosen = np.unique(positions)
        row = np.full(len(texts), -1, dtype=np.int64)
        row[chosen] = np.arange(len(chosen))
        return cls(row, _encode(model, [texts[position] for position in chosen]))

    @classmethod
    def all(cls, vectors: Vectors) -> SomeVectors:
        """Every text has its vector."""
        return cls(np.arange(len(vectors)), vectors)

    def plus(self, model: Encoder, texts: Sequence[str], positions: Positions) -> SomeVectors:
        """With the texts at these positions too; only those without a vector are encoded."""
        missing = np.unique(positions[self.row[positions] < 0])
        if not len(missing):
            return self
        row = self.row.copy()
        row[missing] = len(self.vectors) + np.arange(len(missing))
        more = _encode(model, [texts[position] for position in missing])
        return SomeVectors(row, np.concatenate([self.vectors, more]))

    @cached_property
    def positions(self) -> Positions:
        """(vectors,) the text of each; ascending unless some were added."""
        encoded = np.flatnonzero(self.row >= 0)
        return encoded[np.argsort(self.row[encoded])]

    def __getitem__(self, positions: Positions) -> Vectors:
        return self.vectors[self.row[positions]]


def in_blocks(
    score: Callable[[Vectors, Vectors], Vectors],
    left: Vectors | SomeVectors,
    rows: Positions,
    right: Vectors | SomeVectors,
    columns: Positions,
) -> Vectors:
    """Scores of pairs of positions, block by block: the vectors of a block are copied."""
    starts = range(0, max(len(rows), 1), _BLOCK)
    blocks = (slice(start, start + _BLOCK) for start in starts)
    return np.concatenate([score(left[rows[block]], right[columns[block]]) for block in blocks])


def _encode(model: Encoder, texts: Sequence[str]) -> Vectors:
    return np.asarray(model.encode(list(texts)), np.float32)


def _sample(count: int, rng: np.random.Generator) -> Positions:
    """A tenth of the texts, at least 300 and at most 1,000, in order."""
    size = min(count, max(300, min(1000, count // 10)))
    return np.sort(rng.permutation(count)[:size])


def _in_pairs(pairs: Pairs, sides: int) -> list[Positions]:
    """The positions that are in a pair, of each set of texts."""
    return [np.concatenate([pairs.left, pairs.right])] if sides == 1 else [pairs.left, pairs.right]

"""Two speeds: a fast student proposes candidates, the model encodes only those and compares all of them.

One dial says how many candidates are taken for each answer. The recall is measured on a sample of the texts, all of
which the model encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.types import Encoder, Vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import row_scores

Positions = NDArray[np.int64]

_BLOCK = 4096  # pairs scored at once

_FEWEST_PAIRS = 10  # right pairs that a measured recall should rest on

_FEWEST_HITS = 3  # and right answers a query

_QUERIES = 50  # queries that measure the recall of a search


@dataclass(frozen=True, eq=False)
class SomeVectors:
    """The model's vectors of some of the texts, asked for by position."""

    place: Positions
    """(texts,) row in `vectors`, -1 where there is none."""
    vectors: Vectors

    @classmethod
    def of(cls, model: Encoder, texts: Sequence[str], positions: Positions) -> SomeVectors:
        """Encode the texts at these positions."""
        chosen = np.unique(positions)
        place = np.full(len(texts), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        return cls(place, np.asarray(model.encode([texts[position] for position in chosen]), np.float32))

    @classmethod
    def all(cls, vectors: Vectors) -> SomeVectors:
        """Every text has its vector."""
        return cls(np.arange(len(vectors)), vectors)

    def plus(self, model: Encoder, texts: Sequence[str], positions: Positions) -> SomeVectors:
        """With the texts at these positions too; only those without a vector are encoded."""
        fresh = np.unique(positions[self.place[positions] < 0])
        if not len(fresh):
            return self
        place = self.place.copy()
        place[fresh] = len(self.vectors) + np.arange(len(fresh))
        more = np.asarray(model.encode([texts[position] for position in fresh]), np.float32)
        return SomeVectors(place, np.concatenate([self.vectors, more]))

    @cached_property
    def positions(self) -> Positions:
        """(vectors,) whose text each is; ascending unless some were added."""
        found = np.flatnonzero(self.place >= 0)
        return found[np.argsort(self.place[found])]

    def __getitem__(self, positions: Positions) -> Vectors:
        return self.vectors[self.place[positions]]


@dataclass(frozen=True, eq=False)
class FastPairs:
    """Pairs, and the vectors that were computed for them: of candidates and of the sample."""

    pairs: Pairs
    left: SomeVectors
    right: SomeVectors
    sample: tuple[Positions, Positions | None]
    """Positions of the texts on which the recall was measured."""


@dataclass(frozen=True, eq=False)
class FastHits:
    """Hits, and the vectors that were computed for them."""

    hits: Hits
    queries: Vectors
    corpus: SomeVectors


def fast_pairs(
    model: Encoder,
    student: Encoder,
    texts: Sequence[str],
    *,
    k: int,
    dial: int,
    other: Sequence[str] | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> FastPairs:
    """The `k` best pairs, by the model, of the texts in the `k * dial` pairs that the student finds best."""
    check_dial(dial)
    random = np.random.default_rng(seed)
    sample = sample_of(len(texts), random)
    across = None if other is None else sample_of(len(other), random)
    quick = np.asarray(student.encode(list(texts)), np.float32)
    far = None if other is None else np.asarray(student.encode(list(other)), np.float32)
    found = similar_pairs(quick, k=k * dial, other=far, threads=threads)
    if other is None or across is None:
        left = right = SomeVectors.of(model, texts, np.concatenate([found.left, found.right, sample]))
    else:
        left = SomeVectors.of(model, texts, np.concatenate([found.left, sample]))
        right = SomeVectors.of(model, other, np.concatenate([found.right, across]))
    pairs = _among(left, None if other is None else right, k, threads)
    part = len(sample) / max(len(texts), 1)
    part *= part if other is None or across is None else len(across) / max(len(other), 1)
    recall = _pair_recall(
        (quick[sample], None if far is None or across is None else far[across]),
        (left[sample], None if across is None else right[across]),
        k=k,
        part=part,
        dial=dial,
        threads=threads,
    )
    return FastPairs(replace(pairs, recall=recall), left, right, (sample, across))


class CascadeSides(Protocol):
    """The model for queries, the model for documents, and the student for both."""

    @property
    def queries(self) -> Encoder: ...

    @property
    def documents(self) -> Encoder: ...

    @property
    def student(self) -> Encoder | None: ...


def fast_search(
    sides: CascadeSides,
    queries: Sequence[str],
    corpus: Sequence[str],
    *,
    k: int,
    dial: int,
    threads: int | None = None,
    seed: int = 0,
) -> FastHits:
    """The `k` best texts a query, by the model, of all that the student puts among `k * dial` for any query."""
    check_dial(dial)
    student = sides.student
    if student is None:
        raise InputError("two speeds need a student")
    sample = sample_of(len(corpus), np.random.default_rng(seed))
    near, far = (np.asarray(student.encode(list(each)), np.float32) for each in (queries, corpus))
    rough = search(near, far, k * dial, threads=threads).index
    known = SomeVectors.of(sides.documents, corpus, np.concatenate([rough.ravel(), sample]))
    asked = np.asarray(sides.queries.encode(list(queries)), np.float32)
    found = search(asked, known.vectors, k, threads=threads)
    depth = k * len(sample) / len(corpus)
    recall = _search_recall(
        (near, far[sample]), (asked, known[sample]), depth=depth, dial=dial, threads=threads
    )
    return FastHits(Hits(known.positions[found.index], found.score, recall=recall), asked, known)


def check_dial(dial: int) -> None:
    """Refuse a dial that means nothing."""
    if isinstance(dial, bool) or not isinstance(dial, int) or dial < 1:
        raise InputError(
            f"the dial must be a whole number of at least 1 (candidates an answer), got {dial!r}"
        )


def sample_of(count: int, random: np.random.Generator) -> Positions:
    """A tenth of the texts, at least 300 and at most 1,000, in order."""
    size = min(count, max(300, min(1000, count // 10)))
    return np.sort(random.permutation(count)[:size])


def _among(left: SomeVectors, right: SomeVectors | None, k: int, threads: int | None) -> Pairs:
    """The best pairs of all that have vectors: more than the candidates, for no further encoding."""
    found = similar_pairs(left.vectors, k=k, other=None if right is None else right.vectors, threads=threads)
    columns = (left if right is None else right).positions
    return replace(found, left=left.positions[found.left], right=columns[found.right], complete=False)


def scores_of(
    left: Vectors | SomeVectors, rows: Positions, right: Vectors | SomeVectors, columns: Positions
) -> Vectors:
    """Cosines of pairs of positions, block by block."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = row_scores(left[rows[block]], right[columns[block]])
    return out


def _pair_recall(
    quick: tuple[Vectors, Vectors | None],
    exact: tuple[Vectors, Vectors | None],
    *,
    k: int,
    part: float,
    dial: int,
    threads: int | None,
) -> float | None:
    """Within the sample: of the best pairs by the model, those whose texts the student would have proposed.

    As many pairs are asked for as the sample's part of all pairs, but at least ten: fewer would measure nothing.
    """
    fewer = max(_FEWEST_PAIRS, round(k * part))
    truth = similar_pairs(exact[0], k=fewer, other=exact[1], threads=threads)
    guess = similar_pairs(quick[0], k=fewer * dial, other=quick[1], threads=threads)
    if exact[1] is None:
        ends = np.concatenate([guess.left, guess.right])
        right = np.isin(truth.left, ends) & np.isin(truth.right, ends)
    else:
        right = np.isin(truth.left, guess.left) & np.isin(truth.right, guess.right)
    return float(right.mean()) if len(right) else None


def _search_recall(
    quick: tuple[Vectors, Vectors],
    exact: tuple[Vectors, Vectors],
    *,
    depth: float,
    dial: int,
    threads: int | None,
) -> float | None:
    """As `_pair_recall`, for the best `depth` texts a query; sampled texts stand in where queries are few."""
    count = min(len(quick[0]), _QUERIES)
    stand_in = min(_QUERIES - count, len(quick[1]) // 2)
    near, asked = (np.concatenate([queries[:count], sample[:stand_in]]) for queries, sample in (quick, exact))
    fewer = max(_FEWEST_HITS, round(depth))
    truth = search(asked, exact[1][stand_in:], fewer, threads=threads).index
    guess = search(near, quick[1][stand_in:], fewer * dial, threads=threads).index
    right = [np.isin(row, given).mean() for row, given in zip(truth, guess, strict=True) if len(row)]
    return float(np.mean(right)) if right else None

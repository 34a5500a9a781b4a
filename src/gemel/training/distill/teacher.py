"""The teacher of a distillation, and how well a student agrees with it.

A teacher is a sentence encoder or a cross-encoder; it gives a pair of texts a score of at most 1. Agreement is the rank
correlation of the student's cosines with those scores, on pairs of texts that were held out of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import is_cross_encoder
from gemel.checkpoint.sources import find_model
from gemel.cross_model import CrossModel, load_cross
from gemel.errors import InputError
from gemel.evaluation.metrics import spearman
from gemel.model import Model, load
from gemel.types import ShownResult, Vectors
from gemel.vectors.search import search
from gemel.vectors.similarity import row_scores

Positions = NDArray[np.int64]

_POSITIVE_LABELS = ("entailment", "duplicate", "paraphrase", "equivalent", "similar")

_MOST_HELD_OUT, _FEWEST_HELD_OUT = 500, 8


def open_teacher(name: str | Path, *, threads: int | None = None) -> Teacher:
    """A teacher by name or folder, of the kind that the folder has."""
    if is_cross_encoder(find_model(name)):
        return CrossTeacher(load_cross(name), threads)
    return BiTeacher(load(name), threads)


class BiTeacher:
    """A sentence encoder; its score is the cosine of its vectors."""

    scale = "the cosine"
    """What a score is, for messages."""

    def __init__(self, model: Model, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self.name, self.files, self.dim = model.name, model.checkpoint.parts, model.dim

    @property
    def identity(self) -> str:
        """Equal for teachers that give equal scores."""
        return self.model.fingerprint.digest

    def encode(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """(n, dim) as the model gives them; long texts are truncated without a warning."""
        vectors: Vectors = self.model.encode(
            texts, on_long="truncate", threads=self.threads, progress=progress
        )
        return vectors

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n,) for each pair `left[i]`, `right[i]`."""
        vectors = self.encode([*left, *right])
        cosines = row_scores(vectors[: len(left)], vectors[len(left) :])
        return np.asarray(np.clip(cosines, -1, 1), dtype=np.float32)


class CrossTeacher:
    """A cross-encoder; its score from 0 to 1, or the probability that two texts belong together."""

    def __init__(self, model: CrossModel, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self.name, self.files = model.name, model.checkpoint.encoder.parts
        self._column = _positive_label(model)
        self._unbounded = model.checkpoint.activation == "identity"
        if self._column is not None:
            self.scale = f"the probability of {model.labels[self._column]!r}"
        else:
            self.scale = "the sigmoid of the unbounded score" if self._unbounded else "the score"

    @property
    def identity(self) -> str:
        return self.model.weights_hash[:16]

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        if self._column is not None:
            probabilities = self.model.probabilities(left, right, on_long="truncate", threads=self.threads)
            return probabilities[:, self._column]
        score = self.model.scores(left, right, on_long="truncate", threads=self.threads)
        if not self._unbounded:
            return score
        return np.asarray(1 / (1 + np.exp(-score.astype(np.float64))), dtype=np.float32)


Teacher: TypeAlias = BiTeacher | CrossTeacher


def _positive_label(model: CrossModel) -> int | None:
    """The column of the label for texts that belong together; None: there is one score and no labels."""
    if len(model.labels) == 1:
        return None
    names = [label.lower() for label in model.labels]
    for name in _POSITIVE_LABELS:
        if name in names:
            return names.index(name)
    raise InputError(
        f"{model.name} has the labels {', '.join(model.labels)}, none of which means that two texts are similar "
        f"({', '.join(_POSITIVE_LABELS)}). Give a cross-encoder with one score, or a sentence encoder"
    )


@dataclass(frozen=True, eq=False)
class HeldOutSplit:
    """Which rows train, and which measure the agreement."""

    train: Positions
    test: Positions
    held_out: bool
    """False: there were too few rows, so that the test rows are trained on too."""


def split_rows(count: int, seed: int) -> HeldOutSplit:
    """A tenth of the rows is held out, at most 500; with few rows, all of them train."""
    test = min(_MOST_HELD_OUT, count // 10)
    order = np.random.default_rng(seed).permutation(count).astype(np.int64)
    if test < _FEWEST_HELD_OUT:
        return HeldOutSplit(np.arange(count), np.sort(order[:_MOST_HELD_OUT]), held_out=False)
    return HeldOutSplit(np.sort(order[test:]), np.sort(order[:test]), held_out=True)


@dataclass(frozen=True)
class StudentAgreement(ShownResult):
    """Spearman correlations of the student's cosines with the teacher's scores, times 100; None: not defined."""

    near: float | None
    """On near pairs, or on the pairs in the data: the hard part."""
    random: float | None
    all: float | None

    def summary(self) -> str:
        return ", ".join(
            f"{name} pairs {'-' if value is None else f'{value:.1f}'}" for name, value in asdict(self).items()
        )


@dataclass(frozen=True)
class AgreementScores:
    agreement: StudentAgreement
    speed: float
    """Texts per second."""


@dataclass(frozen=True, eq=False)
class AgreementTest:
    """Pairs with the teacher's scores, to measure a student on."""

    left: list[str]
    right: list[str]
    """As the student reads them: translations, if the data has any."""
    near: int
    """The number of near pairs, which come first; the others are random."""
    scores: Vectors
    held_out: bool
    """False: there were too few texts, so that they are trained on too."""
    teacher_speed: float
    """Texts per second; pairs per second of a cross-encoder."""

    @property
    def crowding(self) -> float:
        """The teacher's mean score of random pairs; near 1 it finds all texts similar."""
        random = self.scores[self.near :]
        return float(random.mean()) if len(random) else 0.0

    def measure(self, student: Model, *, threads: int | None = None) -> AgreementScores:
        """The student's agreement and speed."""
        texts = list(dict.fromkeys([*self.left, *self.right]))
        started = perf_counter()
        vectors = student.encode(texts, on_long="truncate", threads=threads)
        speed = len(texts) / max(perf_counter() - started, 1e-9)
        rows = {text: row for row, text in enumerate(texts)}
        left, right = ([rows[text] for text in side] for side in (self.left, self.right))
        cosines = row_scores(vectors[left], vectors[right])
        near, rest = slice(None, self.near), slice(self.near, None)
        parts = [_spearman(cosines[part], self.scores[part]) for part in (near, rest, slice(None))]
        return AgreementScores(StudentAgreement(*parts), speed)


def agreement_on_texts(
    teacher: Teacher,
    rows: Sequence[tuple[str, ...]],
    split: HeldOutSplit,
    *,
    near_by: Model,
    seed: int = 0,
) -> AgreementTest:
    """A test with near and random pairs of held-out texts, the near ones by the vectors of `near_by`."""
    test = [rows[row] for row in split.test]
    texts = [row[0] for row in test]
    vectors = near_by.encode(texts, on_long="truncate")
    each = 3 if isinstance(teacher, BiTeacher) else 1  # a cross-encoder runs once per pair
    proposed = propose_pairs(vectors, neighbors=each, random=each, seed=seed)
    right = [
        test[b][1 + number % (len(test[b]) - 1)] if len(test[b]) > 1 else test[b][0]
        for number, b in enumerate(proposed.all[:, 1].tolist())
    ]
    pairs = [(texts[a], texts[b]) for a, b in proposed.all.tolist()]
    scores, speed = _timed_scores(teacher, pairs)
    return AgreementTest([a for a, _ in pairs], right, len(proposed.near), scores, split.held_out, speed)


def agreement_on_pairs(
    teacher: Teacher, pairs: Sequence[tuple[str, ...]], split: HeldOutSplit, *, seed: int = 0
) -> AgreementTest:
    """A test with the held-out pairs, and as many random ones: the left text of one with the right of another."""
    test = [pairs[row] for row in split.test]
    order = np.random.default_rng(seed).permutation(len(test))
    both = [*test, *((test[a][0], test[b][1]) for a, b in enumerate(order.tolist()) if a != b)]
    scores, speed = _timed_scores(teacher, [(left, right) for left, right in both])
    left, right = [pair[0] for pair in both], [pair[1] for pair in both]
    return AgreementTest(left, right, len(test), scores, split.held_out, speed)


def _timed_scores(teacher: Teacher, pairs: Sequence[tuple[str, str]]) -> tuple[Vectors, float]:
    started = perf_counter()
    scores = teacher.scores([a for a, _ in pairs], [b for _, b in pairs])
    work = len({text for pair in pairs for text in pair}) if isinstance(teacher, BiTeacher) else len(pairs)
    return scores, work / max(perf_counter() - started, 1e-9)


def _spearman(left: Vectors, right: Vectors) -> float | None:
    correlation = spearman(left, right)
    return None if correlation is None else round(100 * correlation, 2)


@dataclass(frozen=True, eq=False)
class ProposedPairs:
    """Pairs of texts for a teacher to score, by position; no pair occurs twice, in either order."""

    near: Positions
    """(p, 2)"""
    random: Positions
    """(q, 2)"""

    @property
    def all(self) -> Positions:
        return np.concatenate([self.near, self.random])


def propose_pairs(
    vectors: Vectors, *, neighbors: int, random: int, seed: int = 0, threads: int | None = None
) -> ProposedPairs:
    """For each row its nearest `neighbors` and `random` other rows; fewer if there are no more.

    Near pairs teach most; random pairs keep the scores from all being high.
    """
    count = len(vectors)
    if count < 2:
        return ProposedPairs(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64))
    hits = search(vectors, vectors, k=min(neighbors + 1, count), threads=threads).index
    rows = np.repeat(np.arange(count), hits.shape[1])
    # A row is not always its own first hit, since another may have an equal vector.
    near = _distinct(np.stack([rows, hits.ravel()], axis=1))
    rng = np.random.default_rng(seed)
    drawn = _distinct(rng.integers(0, count, size=(count * random, 2)))
    taken = set(map(tuple, near.tolist()))
    fresh = [pair for pair in drawn.tolist() if tuple(pair) not in taken]
    return ProposedPairs(near, np.array(fresh, dtype=np.int64).reshape(-1, 2))


def _distinct(pairs: Positions) -> Positions:
    """Each pair of two different rows once, lower position first, in order."""
    different = pairs[pairs[:, 0] != pairs[:, 1]]
    distinct: Positions = np.unique(np.sort(different, axis=1), axis=0)
    return distinct

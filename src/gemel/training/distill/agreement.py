"""How far a student agrees with its teacher: the same order of the same pairs, on texts that neither trains on.

Pairs of texts for a teacher to label: near ones, which teach, and random ones, so that not all scores are high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.metrics import spearman
from gemel.model import Model
from gemel.training.distill.teacher import BiTeacher, Teacher
from gemel.types import Vectors
from gemel.vectors.search import search
from gemel.vectors.similarity import row_scores

_MOST = 500  # rows that are held back

_FEWEST = 8


@dataclass(frozen=True)
class StudentAgreement:
    """Spearman correlations of the student's cosines with the teacher's scores, times 100; None: not defined."""

    near: float | None
    """Of pairs that are near one another, or that the data gave: the hard part."""
    random: float | None
    all: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        return ", ".join(f"{name} pairs {_shown(value)}" for name, value in asdict(self).items())


@dataclass(frozen=True, eq=False)
class AgreementTest:
    """Pairs, and what the teacher says of each."""

    left: list[str]
    right: list[str]
    """As the student reads them: translations, where the data has some."""
    near: int
    """The first so many pairs are near ones, the others random."""
    scores: Vectors
    held_out: bool
    """False: there were too few texts, so they are also trained on."""
    teacher_speed: float
    """Texts a second; of a cross-encoder, pairs."""

    @property
    def crowding(self) -> float:
        """The teacher's mean score of random pairs; near 1 all texts look alike to it."""
        random = self.scores[self.near :]
        return float(random.mean()) if len(random) else 0.0

    def measure(self, student: Model, *, threads: int | None = None) -> AgreementScores:
        """The student's agreement and speed."""
        texts = list(dict.fromkeys([*self.left, *self.right]))
        started = perf_counter()
        vectors = student.encode(texts, on_long="truncate", threads=threads)
        speed = len(texts) / max(perf_counter() - started, 1e-9)
        place = {text: row for row, text in enumerate(texts)}
        left, right = ([place[text] for text in side] for side in (self.left, self.right))
        own = row_scores(vectors[left], vectors[right])
        near, rest = slice(None, self.near), slice(self.near, None)
        parts = [_spearman(own[part], self.scores[part]) for part in (near, rest, slice(None))]
        return AgreementScores(StudentAgreement(*parts), speed)


@dataclass(frozen=True)
class AgreementScores:
    agreement: StudentAgreement
    speed: float
    """Texts a second."""


@dataclass(frozen=True, eq=False)
class AgreementSplit:
    """Which rows train, and which are held back to measure."""

    train: Positions
    held: Positions
    held_out: bool


def split_rows(count: int, seed: int) -> AgreementSplit:
    """A tenth held back, at most 500 rows; where that would be a handful, all rows do both."""
    held = min(_MOST, count // 10)
    order = np.random.default_rng(seed).permutation(count).astype(np.int64)
    if held < _FEWEST:
        return AgreementSplit(np.arange(count), np.sort(order[:_MOST]), held_out=False)
    return AgreementSplit(np.sort(order[held:]), np.sort(order[:held]), held_out=True)


def yardstick_of_texts(
    teacher: Teacher,
    rows: Sequence[tuple[str, ...]],
    split: AgreementSplit,
    *,
    near_by: Model | None,
    seed: int = 0,
) -> AgreementTest:
    """Near and random pairs of the held texts. `near_by` says what is near; None: the teacher itself."""
    held = [rows[row] for row in split.held]
    texts = [row[0] for row in held]
    finder = near_by or (teacher.model if isinstance(teacher, BiTeacher) else None)
    assert finder is not None, "a cross-encoder has no vectors"
    vectors = finder.encode(texts, on_long="truncate")
    each = 3 if isinstance(teacher, BiTeacher) else 1  # a cross-encoder takes its time for each pair
    found = propose_pairs(vectors, neighbours=each, random=each, seed=seed)
    right = [
        held[b][1 + place % (len(held[b]) - 1)] if len(held[b]) > 1 else held[b][0]
        for place, b in enumerate(found.all[:, 1].tolist())
    ]
    pairs = [(texts[a], texts[b]) for a, b in found.all.tolist()]
    scores, speed = _timed(teacher, pairs)
    return AgreementTest([a for a, _ in pairs], right, len(found.near), scores, split.held_out, speed)


def yardstick_of_pairs(
    teacher: Teacher, pairs: Sequence[tuple[str, ...]], split: AgreementSplit, *, seed: int = 0
) -> AgreementTest:
    """The held pairs, and as many of one's left text with another's right."""
    held = [pairs[row] for row in split.held]
    order = np.random.default_rng(seed).permutation(len(held))
    both = [*held, *((held[a][0], held[b][1]) for a, b in enumerate(order.tolist()) if a != b)]
    scores, speed = _timed(teacher, [(left, right) for left, right in both])
    left, right = [pair[0] for pair in both], [pair[1] for pair in both]
    return AgreementTest(left, right, len(held), scores, split.held_out, speed)


def _timed(teacher: Teacher, pairs: Sequence[tuple[str, str]]) -> tuple[Vectors, float]:
    started = perf_counter()
    scores = teacher.scores([a for a, _ in pairs], [b for _, b in pairs])
    work = len({text for pair in pairs for text in pair}) if isinstance(teacher, BiTeacher) else len(pairs)
    return scores, work / max(perf_counter() - started, 1e-9)


def _spearman(left: Vectors, right: Vectors) -> float | None:
    found = spearman(left, right)
    return None if found is None else round(100 * found, 2)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Proposed:
    """Positions of texts, pair by pair; no pair is there twice, in either order."""

    near: Positions
    """(p, 2)"""
    random: Positions
    """(q, 2)"""

    @property
    def all(self) -> Positions:
        return np.concatenate([self.near, self.random])


def propose_pairs(
    vectors: Vectors, *, neighbours: int, random: int, seed: int = 0, threads: int | None = None
) -> Proposed:
    """For each row its nearest `neighbours`, and `random` others a row; fewer where there are no more."""
    count = len(vectors)
    if count < 2:
        return Proposed(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64))
    hits = search(vectors, vectors, k=min(neighbours + 1, count), threads=threads).index
    rows = np.repeat(np.arange(count), hits.shape[1])
    found = np.stack([rows, hits.ravel()], axis=1)
    # A text may come after an equal vector, so itself is not always the first hit.
    near = _distinct(found[found[:, 0] != found[:, 1]])
    dice = np.random.default_rng(seed)
    drawn = _distinct(_unequal(dice.integers(0, count, size=(count * random, 2))))
    taken = set(map(tuple, near.tolist()))
    fresh = [pair for pair in drawn.tolist() if tuple(pair) not in taken]
    return Proposed(near, np.array(fresh, dtype=np.int64).reshape(-1, 2))


def _unequal(pairs: Positions) -> Positions:
    unequal: Positions = pairs[pairs[:, 0] != pairs[:, 1]]
    return unequal


def _distinct(pairs: Positions) -> Positions:
    """Each pair once, lower position first, in the order of the positions."""
    found: Positions = np.unique(np.sort(pairs, axis=1), axis=0)
    return found

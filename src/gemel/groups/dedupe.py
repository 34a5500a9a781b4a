"""Duplicates out of a list of texts: the same ones by hash, near ones by their vectors. `dedupe` and its answer.

The answer: which texts stay, which go, and why.

Texts that are the same but for how they are written: found by their folded form, before anything is encoded.

Groups of near-duplicates as stars: one text is kept, and each removed one is near to the one that stands for it.

Chains (a like b, b like c, so a with c) would put texts together that have nothing in common, and removing a text
because of a chain loses it. Here a goes or stays for one reason that can be read. No two kept texts are near.

Near texts that say the opposite are no duplicates: a model that keeps its relation head can tell.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError, MissingExtra
from gemel.groups.neighbors import neighbours_of, pairs_above
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import AnyVectors, Encoder, Vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.similarity import checked, normalize

if TYPE_CHECKING:
    import pandas


Keep: TypeAlias = Literal["first", "longest", "central"]

Positions: TypeAlias = NDArray[np.int64]


def dedupe(  # noqa: PLR0913 - one question, and how to work on it
    texts: Sequence[str],
    *,
    model: Encoder | None = None,
    vectors: ArrayLike | None = None,
    min_score: float | None = 0.9,
    keep: Keep = "first",
    ignore_case: bool = True,
    ignore_space: bool = True,
    options: EncodeOptions | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> DedupeResult:
    """Which texts to keep, so that no two of them are duplicates, and for which of them each other one is removed.

    Texts that are the same (see `ignore_case`, `ignore_space`) are found first; the rest are compared by the cosine
    of their `vectors`, or of those that `model` gives. Every removed text is at least `min_score` from the kept
    one it is a duplicate of; chains do not count.

    min_score: None looks for exact duplicates only, and needs neither model nor vectors.
    keep: of duplicates, the first, the longest, or the central one, which has the most duplicates.
    options: of encoding. Default: texts longer than the model are read whole, in chunks.

    A model with a relation head also tells contradictions: pairs with more than half of the probability on one are
    no duplicates, and are listed as `spared`.
    """
    known = check_texts(texts)
    _check(len(known), model, vectors, min_score, keep)
    first = same_texts(known, ignore_case=ignore_case, ignore_space=ignore_space)
    chosen = _chosen(known, first, keep)
    positions = np.unique(chosen)
    settings = {
        "min_score": min_score,
        "keep": keep,
        "ignore_case": ignore_case,
        "ignore_space": ignore_space,
    }
    if min_score is None:
        return _answer(chosen, positions, None, (), settings)
    rows = _rows([known[at] for at in positions.tolist()], positions, model, vectors, options)
    pairs = pairs_above(normalize(rows), float(min_score), memory=memory, threads=threads, progress=progress)
    head = model if isinstance(model, Model) else None
    pairs, spared = without_contradictions(pairs, rows, head, positions)
    found = stars(pairs, len(positions), _order(known, positions, pairs, keep))
    return _answer(chosen, positions, found, spared, settings)


def _check(
    count: int, model: Encoder | None, vectors: ArrayLike | None, min_score: float | None, keep: str
) -> None:
    if keep not in get_args(Keep):
        raise InputError(f"keep must be one of {', '.join(get_args(Keep))}, got {keep!r}")
    if min_score is None:
        return
    if not np.isfinite(min_score):
        raise InputError(
            f"min_score must be a finite number, or None for exact duplicates, got {min_score!r}"
        )
    if model is None and vectors is None:
        raise InputError("near duplicates need a model or vectors. For exact ones alone write min_score=None")
    if vectors is not None and len(np.asarray(vectors)) != count:
        raise InputError(f"{count:,} texts but {len(np.asarray(vectors)):,} vectors: give one vector a text")


def _chosen(texts: Sequence[str], first: Positions, keep: Keep) -> Positions:
    """(n,) for each text the one among those that are the same which stands for them."""
    if keep == "first":
        return first
    best = first.copy()
    for position, group in enumerate(first.tolist()):
        if _place(texts[position], keep) < _place(texts[best[group]], keep):
            best[group] = position
    return best[first]


def _place(text: str, keep: Keep) -> tuple[int, str]:
    """Of texts that are the same the least stays, wherever they stand in the file."""
    return (-len(text) if keep == "longest" else 0, text)


def _rows(
    texts: list[str],
    positions: Positions,
    model: Encoder | None,
    vectors: ArrayLike | None,
    options: EncodeOptions | None,
) -> Vectors:
    """One for each different text."""
    if vectors is not None:
        return checked(vectors, "vectors")[positions]
    assert model is not None
    made: AnyVectors = (
        model.encode(texts, options or EncodeOptions(on_long="chunk"))
        if isinstance(model, Model)
        else model.encode(texts)
    )
    return checked(made, "vectors")


def _order(texts: Sequence[str], positions: Positions, pairs: Pairs, keep: Keep) -> Positions:
    """The different texts, those to be kept first, first."""
    if keep == "first":
        return np.arange(len(positions))
    said = [texts[at] for at in positions.tolist()]
    if keep == "longest":
        return np.array(sorted(range(len(said)), key=lambda at: (-len(said[at]), said[at], at)), np.int64)
    count, nearness = central_order(pairs, len(said))
    ranked = sorted(range(len(said)), key=lambda at: (-count[at], -nearness[at], said[at], at))
    return np.array(ranked, np.int64)


def _answer(
    chosen: Positions,
    positions: Positions,
    found: Stars | None,
    spared: tuple[SparedPair, ...],
    settings: Mapping[str, object],
) -> DedupeResult:
    """What holds for a text holds for all that are the same."""
    texts = len(chosen)
    kept_for = np.arange(texts)
    score = np.ones(texts, dtype=np.float32)
    if found is not None:
        kept_for[positions[found.removed]] = positions[found.kept_for]
        score[positions[found.removed]] = found.score
    final, score = kept_for[chosen], score[chosen]
    removed = np.flatnonzero(final != np.arange(texts))
    return DedupeResult(
        texts=texts,
        kept=np.flatnonzero(final == np.arange(texts)),
        removed=removed,
        duplicate_of=final[removed],
        score=score[removed],
        exact=final[removed] == chosen[removed],
        spared=spared,
        settings=settings,
    )


@dataclass(frozen=True)
class SparedPair:
    """Two texts that are near, but contradict each other, so neither is a duplicate of the other."""

    left: int
    right: int
    score: float
    probability: float
    """Of the contradiction, by the model's relation head; the larger of both directions."""


@dataclass(frozen=True)
class DuplicateGroup:
    """A kept text and those removed for it, by position."""

    kept: int
    removed: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DedupeResult:
    """Positions of n texts."""

    texts: int
    kept: Positions
    """Ascending."""
    removed: Positions
    """Ascending; the next three go with it."""
    duplicate_of: Positions
    """The kept text that each is a duplicate of."""
    score: Vectors
    """Their cosine; 1 for an exact duplicate."""
    exact: NDArray[np.bool_]
    """The same text, but for what was to be ignored."""
    spared: tuple[SparedPair, ...]
    """Pairs that were near enough but contradict each other, most similar first; empty without a relation head."""
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.kept)

    def groups(self) -> list[DuplicateGroup]:
        """Largest first, then by the position of the kept text; texts without a duplicate are in none."""
        order = np.argsort(self.duplicate_of, kind="stable")
        kept, starts = np.unique(self.duplicate_of[order], return_index=True)
        parts = np.split(self.removed[order], starts[1:]) if len(kept) else []
        found = [
            DuplicateGroup(int(one), tuple(part.tolist())) for one, part in zip(kept, parts, strict=True)
        ]
        return sorted(found, key=lambda group: (-len(group.removed), group.kept))

    def summary(self) -> str:
        """One line for a person."""
        same = int(self.exact.sum())
        parts = [
            f"{self.texts:,} texts: {len(self.kept):,} kept",
            f"{len(self.removed):,} removed ({same:,} exact, {len(self.removed) - same:,} near duplicates)",
        ]
        if self.spared:
            parts.append(f"{len(self.spared):,} near pairs kept apart because they contradict each other")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Everything, by position."""
        return {
            "texts": self.texts,
            "kept": len(self.kept),
            "removed": len(self.removed),
            "exact": int(self.exact.sum()),
            "settings": dict(self.settings),
            "duplicates": [
                {
                    "position": int(position),
                    "duplicate_of": int(other),
                    "reason": "exact" if same else "near",
                    "score": round(float(score), 6),
                }
                for position, other, same, score in zip(
                    self.removed, self.duplicate_of, self.exact, self.score, strict=True
                )
            ],
            "spared": [asdict(pair) for pair in self.spared],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each removed text."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        names = ("removed", "duplicate_of", "score", "exact")
        return pandas.DataFrame({name: getattr(self, name) for name in names})


def folded(text: str, *, ignore_case: bool = True, ignore_space: bool = True) -> str:
    """Two texts are the same when these are equal. Unicode has several ways to write é: they never count."""
    plain = unicodedata.normalize("NFC", text)
    if ignore_case:
        plain = unicodedata.normalize("NFC", plain.casefold())
    return " ".join(plain.split()) if ignore_space else plain


def same_texts(texts: Sequence[str], *, ignore_case: bool, ignore_space: bool) -> NDArray[np.int64]:
    """(n,) for each text the position of the first one that is the same; its own where there is none before it."""
    first: dict[str, int] = {}
    found = (
        first.setdefault(folded(text, ignore_case=ignore_case, ignore_space=ignore_space), position)
        for position, text in enumerate(texts)
    )
    return np.fromiter(found, np.int64, len(texts))


@dataclass(frozen=True, eq=False)
class Stars:
    """Which of n rows are removed, and for which kept one."""

    removed: Positions
    """Ascending."""
    kept_for: Positions
    """The kept row that each stands behind: of those that are near enough, the most similar."""
    score: Vectors


def stars(pairs: Pairs, rows: int, order: Positions) -> Stars:
    """`pairs` are all that are near enough; `order` has the rows that are to be kept first, first."""
    near = neighbours_of(pairs, rows)
    gone = np.zeros(rows, dtype=bool)
    connected = np.diff(near.start) > 0
    for row in order[connected[order]].tolist():
        if not gone[row]:
            gone[near.of(row)] = True
    rank = np.empty(rows, dtype=np.int64)
    rank[order] = np.arange(rows)
    one, other = np.append(pairs.left, pairs.right), np.append(pairs.right, pairs.left)
    score = np.append(pairs.score, pairs.score)
    edge = np.flatnonzero(gone[one] & ~gone[other])
    # By removed row, then the most similar kept one, then that which comes first in the order.
    edge = edge[np.lexsort((rank[other[edge]], -score[edge], one[edge]))]
    removed, first = np.unique(one[edge], return_index=True)
    return Stars(removed, other[edge][first], score[edge][first])


def central_order(pairs: Pairs, rows: int) -> tuple[Positions, NDArray[np.float64]]:
    """(n,) how many near-duplicates each row has, and how near they are altogether."""
    near = neighbours_of(pairs, rows)
    return np.diff(near.start), near.nearness


LIMIT = 0.5

_BLOCK = 65_536  # pairs looked at at once


def without_contradictions(
    pairs: Pairs, vectors: AnyVectors, model: Model | None, positions: NDArray[np.int64]
) -> tuple[Pairs, tuple[SparedPair, ...]]:
    """The pairs that do not contradict, and those that do by `positions`.

    A head reads pairs in one direction; one in which it sees a contradiction is enough, as removing loses more.
    """
    labels = None if model is None else model.labels
    place = next(
        (at for at, label in enumerate(labels or ()) if label.lower().startswith("contradict")), None
    )
    if model is None or place is None or not len(pairs):
        return pairs, ()
    probability = np.empty(len(pairs), dtype=np.float32)
    for begin in range(0, len(pairs), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        left, right = vectors[pairs.left[part]], vectors[pairs.right[part]]
        both = (model.relation_of(left, right)[:, place], model.relation_of(right, left)[:, place])
        probability[part] = np.maximum(*both)
    against = probability > LIMIT
    order = np.flatnonzero(against)
    order = order[np.argsort(-pairs.score[order], kind="stable")]
    spared = tuple(
        SparedPair(
            int(positions[pairs.left[at]]),
            int(positions[pairs.right[at]]),
            float(pairs.score[at]),
            float(probability[at]),
        )
        for at in order.tolist()
    )
    rest = ~against
    return replace(pairs, score=pairs.score[rest], left=pairs.left[rest], right=pairs.right[rest]), spared

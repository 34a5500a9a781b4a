"""Duplicates in a list of texts: exact ones by a hash, near ones by the cosine of their vectors.

Each removed text is near to the kept text it is a duplicate of. Chains (a near b, b near c) do not count: they would
put texts together that have nothing in common. No two kept texts are near. With a model that has an NLI head, texts
that contradict each other are no duplicates.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError, MissingExtra
from gemel.groups.grouping import neighbors_of, pairs_above
from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.terminal import counted
from gemel.types import AnyVectors, Encoder, ShownResult, Vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.similarity import checked, normalize

if TYPE_CHECKING:
    import pandas


Keep: TypeAlias = Literal["first", "longest", "central"]

Positions: TypeAlias = NDArray[np.int64]

_CONTRADICTION = 0.5  # the probability above which a pair counts as a contradiction

_BLOCK = 65_536  # pairs per call of the NLI head


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
    """Which texts to keep, so that no two of them are duplicates, and the kept text of which each other is a duplicate.

    Equal texts (see `ignore_case`, `ignore_space`) are found first; the others are compared by the cosine of their
    `vectors`, or of the vectors from `model`. The cosine of every removed text and the kept text it is a duplicate of
    is at least `min_score`; chains do not count.

    min_score: None looks for exact duplicates only, and needs neither model nor vectors.
    keep: of duplicates, the first, the longest, or the central one, which has the most duplicates.
    options: of encoding. Default: texts that are too long for the model are encoded in chunks.

    With a model that has an NLI head, pairs with a probability of contradiction above one half are no duplicates; they
    are listed as `spared`.
    """
    texts = check_texts(texts)
    _check(len(texts), model, vectors, min_score, keep)
    first = equal_texts(texts, ignore_case=ignore_case, ignore_space=ignore_space)
    chosen = _choose(texts, first, keep)
    positions = np.unique(chosen)
    settings = {
        "min_score": min_score,
        "keep": keep,
        "ignore_case": ignore_case,
        "ignore_space": ignore_space,
    }
    if min_score is None:
        return _result(chosen, positions, None, (), settings)
    rows = _rows([texts[i] for i in positions.tolist()], positions, model, vectors, options)
    pairs = pairs_above(normalize(rows), float(min_score), memory=memory, threads=threads, progress=progress)
    head = model if isinstance(model, Model) else None
    pairs, spared = without_contradictions(pairs, rows, head, positions)
    near = _near_duplicates(pairs, len(positions), _order(texts, positions, pairs, keep))
    return _result(chosen, positions, near, spared, settings)


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
        raise InputError(
            f"{count:,} texts but {len(np.asarray(vectors)):,} vectors: give one vector per text"
        )


def _choose(texts: Sequence[str], first: Positions, keep: Keep) -> Positions:
    """(n,) for each text the one to keep of all that are equal to it."""
    if keep == "first":
        return first
    best = first.copy()
    for position, group in enumerate(first.tolist()):
        if _sort_key(texts[position], keep) < _sort_key(texts[best[group]], keep):
            best[group] = position
    return best[first]


def _sort_key(text: str, keep: Keep) -> tuple[int, str]:
    """Of equal texts that with the lowest key is kept, so that their order in the file does not matter."""
    return (-len(text) if keep == "longest" else 0, text)


def _rows(
    texts: list[str],
    positions: Positions,
    model: Encoder | None,
    vectors: ArrayLike | None,
    options: EncodeOptions | None,
) -> Vectors:
    """One vector for each distinct text."""
    if vectors is not None:
        return checked(vectors, "vectors")[positions]
    assert model is not None
    encoded: AnyVectors = (
        model.encode(texts, options or EncodeOptions(on_long="chunk"))
        if isinstance(model, Model)
        else model.encode(texts)
    )
    return checked(encoded, "vectors")


def _order(texts: Sequence[str], positions: Positions, pairs: Pairs, keep: Keep) -> Positions:
    """The distinct texts by preference, the one to keep rather first."""
    if keep == "first":
        return np.arange(len(positions))
    distinct = [texts[i] for i in positions.tolist()]
    each = range(len(distinct))
    if keep == "longest":
        return np.array(sorted(each, key=lambda i: (-len(distinct[i]), distinct[i], i)), np.int64)
    near = neighbors_of(pairs, len(distinct))
    count = np.diff(near.start)
    ranked = sorted(each, key=lambda i: (-count[i], -near.nearness[i], distinct[i], i))
    return np.array(ranked, np.int64)


def _result(
    chosen: Positions,
    positions: Positions,
    near: _NearDuplicates | None,
    spared: tuple[SparedPair, ...],
    settings: Mapping[str, object],
) -> DedupeResult:
    """From distinct texts to all texts: equal texts are kept or removed together with the one chosen of them."""
    texts = len(chosen)
    kept_for = np.arange(texts)
    score = np.ones(texts, dtype=np.float32)
    if near is not None:
        kept_for[positions[near.removed]] = positions[near.kept_for]
        score[positions[near.removed]] = near.score
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
class SparedPair(ShownResult):
    """Two texts that are near, but contradict each other, so neither is a duplicate of the other."""

    left: int
    right: int
    score: float
    probability: float
    """Of the contradiction, by the model's NLI head; the larger of both directions."""


@dataclass(frozen=True)
class DuplicateGroup(ShownResult):
    """A kept text and those removed for it, by position."""

    kept: int
    removed: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DedupeResult(ShownResult):
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
    """The same text, except for what was ignored."""
    spared: tuple[SparedPair, ...]
    """Pairs that were near enough but contradict each other, most similar first; empty without an NLI head."""
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.kept)

    def groups(self) -> list[DuplicateGroup]:
        """Largest first, then by the position of the kept text; texts without a duplicate are in none."""
        order = np.argsort(self.duplicate_of, kind="stable")
        kept, starts = np.unique(self.duplicate_of[order], return_index=True)
        parts = np.split(self.removed[order], starts[1:]) if len(kept) else []
        groups = [
            DuplicateGroup(int(one), tuple(part.tolist())) for one, part in zip(kept, parts, strict=True)
        ]
        return sorted(groups, key=lambda group: (-len(group.removed), group.kept))

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        rows = zip(self.removed, self.duplicate_of, self.score, self.exact, strict=True)
        for removed, kept, score, exact in rows:
            yield {"removed": removed, "duplicate of": kept, "score": score, "exact": bool(exact)}

    def summary(self) -> str:
        """One line of text."""
        same = int(self.exact.sum())
        parts = [
            f"{counted(self.texts, 'text')}: {len(self.kept):,} kept",
            f"{len(self.removed):,} removed ({same:,} exact, {len(self.removed) - same:,} near duplicates)",
        ]
        if self.spared:
            parts.append(f"{len(self.spared):,} near pairs not joined because they contradict each other")
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
        """One row per removed text."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        names = ("removed", "duplicate_of", "score", "exact")
        return pandas.DataFrame({name: getattr(self, name) for name in names})


def folded(text: str, *, ignore_case: bool = True, ignore_space: bool = True) -> str:
    """The form by which texts are compared. Differences of Unicode normalization (é as one or two code points) never
    count."""
    plain = unicodedata.normalize("NFC", text)
    if ignore_case:
        plain = unicodedata.normalize("NFC", plain.casefold())
    return " ".join(plain.split()) if ignore_space else plain


def equal_texts(texts: Sequence[str], *, ignore_case: bool, ignore_space: bool) -> Positions:
    """(n,) for each text the position of the first one that is equal to it, which may be its own."""
    first: dict[str, int] = {}
    positions = (
        first.setdefault(folded(text, ignore_case=ignore_case, ignore_space=ignore_space), position)
        for position, text in enumerate(texts)
    )
    return np.fromiter(positions, np.int64, len(texts))


@dataclass(frozen=True, eq=False)
class _NearDuplicates:
    """Which of n rows are removed, and the kept row of which each is a duplicate."""

    removed: Positions
    """Ascending."""
    kept_for: Positions
    """Of the kept rows that are near enough, the most similar."""
    score: Vectors


def _near_duplicates(pairs: Pairs, rows: int, order: Positions) -> _NearDuplicates:
    """Each row in `order` that is not removed yet is kept, and its neighbors are removed.

    `pairs` are all that are near enough.
    """
    near = neighbors_of(pairs, rows)
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
    # By removed row, then most similar kept row first, then by `order`.
    edge = edge[np.lexsort((rank[other[edge]], -score[edge], one[edge]))]
    removed, first = np.unique(one[edge], return_index=True)
    return _NearDuplicates(removed, other[edge][first], score[edge][first])


def without_contradictions(
    pairs: Pairs, vectors: AnyVectors, model: Model | None, positions: NDArray[np.int64]
) -> tuple[Pairs, tuple[SparedPair, ...]]:
    """The pairs that do not contradict each other, and those that do, with `positions` for rows.

    A head reads a pair in one direction; a contradiction in either is enough, since removing a text loses more.
    """
    labels = None if model is None else model.labels
    column = next((i for i, label in enumerate(labels or ()) if label.lower().startswith("contradict")), None)
    if model is None or column is None or not len(pairs):
        return pairs, ()
    probability = np.empty(len(pairs), dtype=np.float32)
    for begin in range(0, len(pairs), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        left, right = vectors[pairs.left[part]], vectors[pairs.right[part]]
        both = (model.relation_of(left, right)[:, column], model.relation_of(right, left)[:, column])
        probability[part] = np.maximum(*both)
    against = probability > _CONTRADICTION
    order = np.flatnonzero(against)
    order = order[np.argsort(-pairs.score[order], kind="stable")]
    spared = tuple(
        SparedPair(
            int(positions[pairs.left[i]]),
            int(positions[pairs.right[i]]),
            float(pairs.score[i]),
            float(probability[i]),
        )
        for i in order.tolist()
    )
    rest = ~against
    return replace(pairs, score=pairs.score[rest], left=pairs.left[rest], right=pairs.right[rest]), spared

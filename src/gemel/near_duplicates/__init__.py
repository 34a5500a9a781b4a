"""Duplicates out of a list of texts: the same ones by hash, near ones by their vectors. `dedupe` and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.clusters.neighbours import pairs_above
from gemel.errors import InputError
from gemel.model import Model
from gemel.near_duplicates.contradictions import without_contradictions
from gemel.near_duplicates.exact import same_texts
from gemel.near_duplicates.result import Deduped as Deduped
from gemel.near_duplicates.result import DuplicateGroup as DuplicateGroup
from gemel.near_duplicates.result import Spared as Spared
from gemel.near_duplicates.stars import Stars, central_order, stars
from gemel.options import EncodeOptions
from gemel.pairs import Pairs
from gemel.similarity import checked, normalize
from gemel.text.tokenizer import check_texts
from gemel.types import AnyVectors, Encoder, Vectors

__all__ = ["Deduped", "DuplicateGroup", "Keep", "Spared", "dedupe"]

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
) -> Deduped:
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
    spared: tuple[Spared, ...],
    settings: Mapping[str, object],
) -> Deduped:
    """What holds for a text holds for all that are the same."""
    texts = len(chosen)
    kept_for = np.arange(texts)
    score = np.ones(texts, dtype=np.float32)
    if found is not None:
        kept_for[positions[found.removed]] = positions[found.kept_for]
        score[positions[found.removed]] = found.score
    final, score = kept_for[chosen], score[chosen]
    removed = np.flatnonzero(final != np.arange(texts))
    return Deduped(
        texts=texts,
        kept=np.flatnonzero(final == np.arange(texts)),
        removed=removed,
        duplicate_of=final[removed],
        score=score[removed],
        exact=final[removed] == chosen[removed],
        spared=spared,
        settings=settings,
    )

"""Vectors to places in the plane: PCA, or t-SNE, where texts beyond some thousands are put between their neighbours."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.one_thread import one_thread
from gemel.nearest import search
from gemel.similarity import checked, normalize
from gemel.types import Vectors

LayoutName: TypeAlias = Literal["tsne", "pca"]
Places: TypeAlias = NDArray[np.float64]

LANDMARKS = 5000  # texts that t-SNE lays out; more take minutes
_ROUNDS = 600  # steps of t-SNE; later ones hardly move anything
_FIRST = 50  # directions that t-SNE works on
_AROUND = 3  # landmarks that a further text is put between


def layout(vectors: ArrayLike, method: LayoutName = "tsne", *, seed: int = 0) -> Places:
    """(n, 2) between 0 and 1: texts that are alike lie together. Both sides have the same scale."""
    rows = checked(vectors, "vectors")
    if method not in get_args(LayoutName):
        raise InputError(f"unknown layout {method!r}. Known: {', '.join(get_args(LayoutName))}")
    unit = normalize(rows)
    if method == "pca" or len(unit) < 10:  # too few to have neighbourhoods
        return _framed(_pca(unit, 2))
    return _framed(_tsne(unit, seed))


def _pca(rows: Vectors, directions: int) -> Places:
    """(n, directions): the coordinates along which the rows differ most; each points where its largest part is."""
    centred = rows.astype(np.float64) - (rows.mean(axis=0, dtype=np.float64) if len(rows) else 0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :directions]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    out = np.zeros((len(rows), directions))
    out[:, : axes.shape[1]] = centred @ axes
    return out


def _tsne(unit: Vectors, seed: int) -> Places:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtra("the map (but for the layout pca)", "scikit-learn", "evaluate") from error
    chosen = np.sort(np.random.default_rng(seed).permutation(len(unit))[:LANDMARKS])
    marks = unit[chosen]
    with one_thread("the map"):
        reduced = _pca(marks, min(_FIRST, marks.shape[1]))
        perplexity = min(30.0, (len(marks) - 1) / 3)
        start = reduced[:, :2] / max(float(reduced[:, 0].std()), 1e-12) * 1e-4
        if start.shape[1] < 2:
            start = np.column_stack([start, np.zeros(len(start))])
        first = start.astype(np.float32)
        made = TSNE(2, perplexity=perplexity, init=first, random_state=seed, max_iter=_ROUNDS)
        places = np.asarray(made.fit_transform(reduced.astype(np.float32)), dtype=np.float64)
    if len(chosen) == len(unit):
        return places
    hits = search(unit, marks, k=_AROUND)
    weights = np.maximum(hits.score.astype(np.float64), 1e-3) ** 8  # the nearest counts most
    out: Places = (places[hits.index] * weights[..., None]).sum(axis=1) / weights.sum(axis=1)[:, None]
    out[chosen] = places
    return out


def _framed(places: Places) -> Places:
    if not len(places):
        return places
    low, high = places.min(axis=0), places.max(axis=0)
    side = float((high - low).max())
    return np.asarray((places - (low + high) / 2) / (side or 1.0) + 0.5)

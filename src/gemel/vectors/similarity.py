"""How similar two vectors are: `Metric`, one record per metric, and the functions that use it on arrays.

A higher score is always nearer, so the two distances are negative. Adding a metric is adding one record to `METRICS`:
search, pairs, calibration, evaluation and the command line read it from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.registry import Registry
from gemel.types import Encoder, Vectors
from gemel.vectors.scan.exact import EUCLIDEAN, MANHATTAN, PRODUCT, Floats, Kernel

_BLOCK = 2048  # rows converted to float64 at once: 2048 x 1024 dimensions x 8 bytes = 16 MB

_NEAREST = 1e-12  # distances below it are treated as this one, where a logarithm is taken

Score: TypeAlias = Callable[[Vectors, Vectors], Vectors]


@dataclass(frozen=True)
class Stretch:
    """A monotone function that moves the best possible score to infinity, and its inverse."""

    forward: Callable[[Floats], Floats]
    inverse: Callable[[Floats], Floats]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """All that the package knows about one metric."""

    scores: Score
    """All pairs: prepared (n, d) and (m, d) -> (n, m) float32."""
    rows: Score
    """Row by row: prepared (n, d) and (n, d) -> (n,) float32. A score must depend on its two rows alone."""
    normalized: bool = False
    """Rows are scaled to length 1 before they are compared."""
    highest: float = math.inf
    """No score is higher. Scores always order from far to near."""
    kernel: Kernel | None = None
    """How scans score pairs and rule out most of them by bounds; None: they call `rows` for every pair."""
    stretch: Stretch | None = None
    """How calibration extrapolates its scores; None: it cannot be calibrated."""

    def __post_init__(self) -> None:
        assert not self.normalized or self.kernel in (None, PRODUCT), "lengths divide products only"

    def prepare(self, vectors: Vectors) -> Vectors:
        """The rows that `scores` and `rows` take; done once per array."""
        return _unit(vectors) if self.normalized else vectors


METRICS: Registry[Metric] = Registry("metric")


def cosine(left: ArrayLike, right: ArrayLike) -> Vectors:
    """Cosine similarity of all rows of `left` with all rows of `right`: (n, dim) and (m, dim) -> (n, m).

    A single vector (dim,) on either side gives a result without that axis: two of them, one number.
    """
    one, other = np.asarray(left), np.asarray(right)
    table = scores(np.atleast_2d(one), np.atleast_2d(other))
    drop = tuple(axis for axis, array in enumerate((one, other)) if array.ndim == 1)
    return np.asarray(np.squeeze(table, axis=drop), dtype=np.float32)


def normalize(vectors: ArrayLike) -> Vectors:
    """Each row of (n, dim) scaled to length 1, or a single vector (dim,); zeros stay zeros.

    The bits of a row do not depend on the other rows.
    """
    array = np.asarray(vectors)
    return _unit(checked(array[None], "vectors"))[0] if array.ndim == 1 else _unit(checked(array, "vectors"))


def scores(left: ArrayLike, right: ArrayLike, metric: str = "cosine") -> Vectors:
    """(n, m): the score of each row of `left` with each row of `right`; the whole table is in memory."""
    chosen, one, other = _ready(left, right, metric)
    return chosen.scores(one, other)


def row_scores(left: ArrayLike, right: ArrayLike, metric: str = "cosine") -> Vectors:
    """(n,): the score of row i of `left` with row i of `right`."""
    chosen, one, other = _ready(left, right, metric)
    if len(one) != len(other):
        raise InputError(f"left has {len(one)} rows but right has {len(other)}; rows are compared one to one")
    return chosen.rows(one, other)


def checked(vectors: ArrayLike, name: str) -> Vectors:
    """`vectors` as a contiguous finite float32 (n, dim), or an error that calls them `name`."""
    ready = shaped(vectors, name)
    for start in range(0, len(ready), _BLOCK):
        finite = np.isfinite(ready[start : start + _BLOCK])
        if not finite.all():
            bad = ~finite.all(axis=1)
            raise InputError(
                f"{name} must be finite, but row {start + int(bad.argmax())} has NaN or infinity"
            )
    return ready


def shaped(vectors: ArrayLike, name: str) -> Vectors:
    """As `checked`, but finite numbers are left to the caller to check."""
    if is_texts(vectors):
        raise InputError(
            f"{name} must be numbers, got texts. Encode them first: model.encode(texts). Or from texts: "
            "gemel.search_texts(model, queries, texts), gemel.find_pairs(model, texts), cluster(texts, model=model)"
        )
    array: NDArray[Any] = np.asarray(vectors)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be numbers, got an array of {array.dtype}")
    if array.ndim != 2:
        hint = f". For one vector write {name}[None]" if array.ndim == 1 else ""
        raise InputError(f"{name} must have the shape (n, dim), got {array.shape}{hint}")
    return np.ascontiguousarray(array, dtype=np.float32)


def is_texts(given: object) -> bool:
    """True for a text, or a list or array of texts, where vectors are expected."""
    if isinstance(given, np.ndarray):
        return given.dtype.kind in "UTO" and given.size > 0 and isinstance(given.flat[0], str)
    if isinstance(given, str):
        return True
    return isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], str)


def vectors_or_encoded(
    given: ArrayLike | str | Sequence[str], encoder: Encoder | None, side: str = "encode"
) -> ArrayLike:
    """`given`, or the vectors of texts if there is an encoder; `side`: its method, where it has one."""
    if encoder is None or not is_texts(given):
        return given
    if isinstance(encoder, str) or not hasattr(encoder, "encode"):
        raise InputError(
            f"model must have an encode(texts), got {type(encoder).__name__}. Use gemel.load(name)"
        )
    texts = [given] if isinstance(given, str) else [str(text) for text in cast("Sequence[str]", given)]
    return cast("ArrayLike", getattr(encoder, side, encoder.encode)(texts))


def check_same_dim(left: Vectors, right: Vectors, left_name: str, right_name: str) -> None:
    """Refuse two arrays whose rows cannot be compared."""
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"{left_name} have {left.shape[1]} dimensions but {right_name} have {right.shape[1]}; "
            "encode both with the same model"
        )


def _ready(left: ArrayLike, right: ArrayLike, metric: str) -> tuple[Metric, Vectors, Vectors]:
    chosen = METRICS[metric]
    one, other = checked(left, "left"), checked(right, "right")
    check_same_dim(one, other, "rows of left", "rows of right")
    return chosen, chosen.prepare(one), chosen.prepare(other)


def _unit(vectors: Vectors) -> Vectors:
    out = np.empty_like(vectors)
    for start in range(0, len(vectors), _BLOCK):
        # float64: the square of a large float32 overflows, the square of a small one vanishes.
        block = vectors[start : start + _BLOCK].astype(np.float64)
        length = np.sqrt((block * block).sum(axis=1, keepdims=True))
        out[start : start + _BLOCK] = block / np.where(length == 0, 1, length)
    return out


def _dot_rows(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray((left.astype(np.float64) * right).sum(axis=1), dtype=np.float32)


def _euclidean(left: Vectors, right: Vectors) -> Vectors:
    # |a - b|² = |a|² + |b|² - 2 a·b cancels when a is near b; float64 leaves about 1e-8 of their length.
    a, b = left.astype(np.float64), right.astype(np.float64)
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2 * (a @ b.T)
    return np.asarray(-np.sqrt(np.maximum(squares, 0)), dtype=np.float32)


def _euclidean_rows(left: Vectors, right: Vectors) -> Vectors:
    gap = left.astype(np.float64) - right
    return np.asarray(-np.sqrt((gap * gap).sum(axis=1)), dtype=np.float32)


def _manhattan_rows(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray(-np.abs(left - right).sum(axis=1, dtype=np.float64), dtype=np.float32)


_DISTANCE = Stretch(lambda x: -np.log(np.maximum(-x, _NEAREST)), lambda y: -np.exp(-y))

METRICS.add("cosine")(
    Metric(
        scores=PRODUCT.sums,
        rows=_dot_rows,
        normalized=True,
        highest=1.0,
        kernel=PRODUCT,
        stretch=Stretch(lambda x: np.arctanh(np.clip(x, _NEAREST - 1, 1 - _NEAREST)), np.tanh),
    )
)

METRICS.add("dot")(
    Metric(scores=PRODUCT.sums, rows=_dot_rows, kernel=PRODUCT, stretch=Stretch(lambda x: x, lambda y: y))
)

METRICS.add("euclidean")(
    Metric(scores=_euclidean, rows=_euclidean_rows, highest=0.0, kernel=EUCLIDEAN, stretch=_DISTANCE)
)

METRICS.add("manhattan")(
    Metric(scores=MANHATTAN.sums, rows=_manhattan_rows, highest=0.0, kernel=MANHATTAN, stretch=_DISTANCE)
)

"""An inverted file: for each column of sparse rows, the rows that have it and their weights there.

A search reads only the lists of the query's columns. Rows are kept in windows of 65,536, so that the sums of a window
stay in the cache and a posting takes six bytes. Where no weight is negative, blocks of rows whose largest weights
cannot add up to one of the best scores are passed over: the answer is the same, and exact. The compiled search is
native/inverted.h in scan/; `_search_numpy` gives the same bits where nothing was compiled.
"""

from __future__ import annotations

import ctypes
import json
import threading
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.files.atomic import atomic_folder, write_json
from gemel.types import Vectors
from gemel.vectors.scan.native_scanner import chosen_level, library
from gemel.vectors.sparse import SparseRow

__all__ = ["InvertedFile"]

WINDOW = 1 << 16

SHIFT = 4  # a block has 1 << SHIFT rows

BLOCKS = WINDOW >> SHIFT

LONG = 2048  # postings of a list that gets a table of its blocks: it takes as much as 2,048 postings

LEAST_LONG = 1 << 18  # postings of a query in such lists from which blocks are passed over

_FORMAT = 1

_ABOUT = "inverted.json"

_APPROXIMATE = 50_000  # rows from which fewer blocks are read if the search need not be exact

_SHARES = (0.6, 0.7, 0.8, 0.9)  # of a bound that count then: the first that finds enough

_ENOUGH = 0.98  # of the best rows

_SAMPLE, _BEST, _WORDS = 64, 10, 32  # queries whose answers are compared, how many of each, and their columns


@dataclass(frozen=True, eq=False)
class Postings:
    """The arrays of an inverted file; see native/inverted.h."""

    starts: NDArray[np.int64]
    """(windows, columns + 1) where the postings of a column start; those of the next window follow."""
    rows: NDArray[np.uint16]
    """(postings,) in the window, ascending in each list."""
    weights: Vectors
    """(postings,) none is zero."""
    tables: NDArray[np.int32]
    """(windows, columns) the table of a long list, or -1."""
    tops: Vectors
    """(windows, columns) the largest weight of a list; 0: it is empty."""
    block_starts: NDArray[np.uint16]
    """(tables, blocks) where each block starts in its list."""
    block_tops: NDArray[np.uint8]
    """(tables, blocks) the largest weight in a block, rounded up: 255 is that of the list."""


class InvertedFile:
    """Finds the rows with the largest dot product. Made by `build` or `load`; safe to use from several threads.

    A score is the sum of the exact products in float64, from the first column to the last, rounded to float32: the bits
    of `SparseVectors.similarity`. It depends on the query and the row only.
    """

    recall: float | None = None
    """Of `exact=False`: the share of the ten best rows that it finds, measured on rows of the file; None: it is
    exact as well."""

    def __init__(self, postings: Postings, rows: int, dim: int, *, negative: bool) -> None:
        """`rows`, `dim`: the shape of the matrix. `negative`: some weights are, and no block can be passed over."""
        self._postings, self._rows, self.dim = postings, rows, dim
        self._negative, self._share = negative, 1.0
        self._thread = threading.local()
        pointers = {field.name: getattr(postings, field.name).ctypes.data for field in fields(postings)}
        self._view = _FileView(**pointers, count=rows, columns=dim, shift=SHIFT)

    def __len__(self) -> int:
        """How many rows there are."""
        return self._rows

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return sum(getattr(self._postings, field.name).nbytes for field in fields(self._postings))

    @classmethod
    def build(
        cls, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Vectors, dim: int
    ) -> InvertedFile:
        """From rows in the layout CSR, as in `SparseVectors`. Weights of zero are left out."""
        indptr, indices, values = _checked(indptr, indices, values, dim)
        negative = bool((values < 0).any())
        windows = [
            _window(indptr[first : first + WINDOW + 1], indices, values, dim, tables=not negative)
            for first in range(0, len(indptr) - 1, WINDOW)
        ]
        built = cls(_joined(windows, dim), len(indptr) - 1, dim, negative=negative)
        if len(built) >= _APPROXIMATE and len(built._postings.block_tops):
            built._measure(indptr, indices, values)
        return built

    def search(
        self, query: SparseRow, k: int, *, inside: NDArray[np.bool_] | None = None, exact: bool = True
    ) -> tuple[NDArray[np.int64], Vectors]:
        """At most `k` rows and their scores, best first; ties go to the lower row.

        Rows that have no column of the query are left out. `inside`: (rows,) which rows count. `exact=False`: in a
        large file some of the best rows may be missing, see `recall`; the scores are exact.
        """
        columns, values = self._query(query)
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        if inside is not None:
            inside = np.ascontiguousarray(inside, dtype=np.bool_)
            if inside.shape != (len(self),):
                raise InputError(f"inside has the shape {inside.shape}, and the file has {len(self):,} rows")
        k = min(k, len(self))
        level = chosen_level()
        if level == "numpy":
            return _search_numpy(self._postings, len(self), (columns, values), k, inside)
        pruned = not self._negative and len(self._postings.block_tops) and not (values < 0).any()
        share = 0.0 if not pruned else 1.0 if exact else self._share
        rows, scores = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.float32)
        mask = None if inside is None else inside.ctypes.data
        view = _QueryView(columns.ctypes.data, values.ctypes.data, len(columns), mask)
        count = _compiled(level)(
            *(self._view, view, k, share, LEAST_LONG, self._sums().ctypes.data),
            *(rows.ctypes.data, scores.ctypes.data),
        )
        return rows[:count], scores[:count]

    def save(self, folder: Path) -> None:
        """Write the arrays as .npy files to `folder`, which is replaced."""
        with atomic_folder(Path(folder)) as here:
            for field in fields(self._postings):
                np.save(here / f"{field.name}.npy", getattr(self._postings, field.name), allow_pickle=False)
            about = {"format": _FORMAT, "rows": len(self), "dim": self.dim}
            write_json(
                here / _ABOUT,
                {**about, "negative": self._negative, "share": self._share, "recall": self.recall},
            )

    @classmethod
    def load(cls, folder: Path) -> InvertedFile:
        """The file that `save` wrote to `folder`, memory-mapped."""
        folder = Path(folder)
        try:
            about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            arrays = {
                field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r", allow_pickle=False)
                for field in fields(Postings)
            }
            postings = Postings(**arrays)
            file = cls(postings, about["rows"], about["dim"], negative=bool(about["negative"]))
            file.recall, file._share = about["recall"], float(about["share"])
            if about["format"] != _FORMAT:
                raise ValueError(f"its format is {about['format']!r}, and this gemel reads {_FORMAT}")
            _check_arrays(postings, about["rows"], about["dim"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, TokenError, SyntaxError) as error:
            raise InputError(
                f"no inverted file can be read from {folder}: {error}. Build it again"
            ) from error
        return file

    def _measure(self, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Vectors) -> None:
        """Choose how many blocks `exact=False` reads, with some columns of some rows as queries."""
        queries, rng = [], np.random.default_rng(0)
        for row in rng.choice(len(self), _SAMPLE, replace=False):
            sampled = np.sort(rng.permutation(np.arange(indptr[row], indptr[row + 1]))[:_WORDS])
            queries.append((indices[sampled], values[sampled]))
        expected = [self.search(query, _BEST)[0] for query in queries]
        for share in _SHARES:
            self._share = share
            found = [self.search(query, _BEST, exact=False)[0] for query in queries]
            common = sum(map(len, map(np.intersect1d, found, expected)))
            self.recall = common / max(sum(map(len, expected)), 1)
            if self.recall >= _ENOUGH:
                return
        self._share, self.recall = 1.0, None

    def _query(self, query: SparseRow) -> SparseRow:
        columns = np.ascontiguousarray(query[0], dtype=np.int32)
        values = np.ascontiguousarray(query[1], dtype=np.float32)
        if columns.ndim != 1 or columns.shape != values.shape or (np.diff(columns) <= 0).any():
            raise InputError(
                "a query is two arrays of one length: columns, ascending and each once, and their weights"
            )
        if len(columns) and not 0 <= columns[0] <= columns[-1] < self.dim:
            raise InputError(
                f"the query has columns from {columns[0]} to {columns[-1]}, and the file has {self.dim:,} columns: "
                "they are of different models"
            )
        if not np.isfinite(values).all():
            raise InputError("the query has a weight that is not a finite number")
        if not values.all():
            columns, values = columns[values != 0], values[values != 0]
        return columns, values

    def _sums(self) -> NDArray[np.float64]:
        """A buffer for the sums of a window, one per thread."""
        if not hasattr(self._thread, "sums"):
            self._thread.sums = np.empty(WINDOW, dtype=np.float64)
        sums: NDArray[np.float64] = self._thread.sums
        return sums


def _search_numpy(
    postings: Postings, count: int, query: SparseRow, k: int, inside: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], Vectors]:
    found, scores = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.float32)]
    for window, starts in enumerate(postings.starts):
        # No product is zero, and a sum of others never is the negative zero: it stays where no column is shared.
        sums = np.full(min(WINDOW, count - window * WINDOW), -0.0)
        for column, value in zip(*query, strict=True):
            part = slice(starts[column], starts[column + 1])
            sums[postings.rows[part]] += postings.weights[part].astype(np.float64) * np.float64(value)
        rows = np.flatnonzero((sums != 0) | ~np.signbit(sums))
        if inside is not None:
            rows = rows[inside[window * WINDOW + rows]]
        found.append(rows + window * WINDOW)
        with np.errstate(over="ignore"):
            scores.append(sums[rows].astype(np.float32) + np.float32(0))
    every, score = np.concatenate(found), np.concatenate(scores)
    best = np.lexsort((every, -score))[:k]
    return every[best], score[best]


def _window(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Vectors, dim: int, *, tables: bool
) -> Postings:
    """The postings of at most 65,536 rows."""
    part = slice(indptr[0], indptr[-1])
    columns, weights = indices[part], values[part]
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.uint16), np.diff(indptr))
    if not weights.all():
        columns, rows, weights = (array[weights != 0] for array in (columns, rows, weights))
    narrow = columns.astype(np.uint16 if dim <= WINDOW else np.int32)  # NumPy sorts 16 bits in linear time
    order = np.argsort(narrow, kind="stable")
    rows, weights = rows[order], weights[order]
    lengths = np.bincount(columns, minlength=dim)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tops = np.zeros(dim, dtype=np.float32)
    some = np.flatnonzero(lengths)
    if len(some):
        tops[some] = np.maximum.reduceat(weights, starts[some])
    long = np.flatnonzero(lengths >= LONG) if tables else np.empty(0, np.int64)
    numbers = np.full(dim, -1, dtype=np.int32)
    numbers[long] = np.arange(len(long))
    block_starts, block_tops = _block_tables(rows, weights, lengths, long, tops)
    return Postings(starts[None], rows, weights, numbers[None], tops[None], block_starts, block_tops)


def _block_tables(
    rows: NDArray[np.uint16],
    weights: Vectors,
    lengths: NDArray[np.int64],
    long: NDArray[np.int64],
    tops: Vectors,
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Where the blocks of the long lists start, and their largest weights in steps of 1/255 of the list's."""
    is_long = np.zeros(len(lengths), dtype=np.bool_)
    is_long[long] = True
    mine = np.repeat(is_long, lengths)
    table = np.repeat(np.arange(len(long)), lengths[long])
    counts = np.bincount(table * BLOCKS + (rows[mine] >> SHIFT), minlength=len(long) * BLOCKS)
    starts = np.cumsum(counts) - counts
    largest = np.zeros(len(counts))
    some = np.flatnonzero(counts)
    if len(some):
        largest[some] = np.maximum.reduceat(weights[mine], starts[some])
    starts = starts.reshape(len(long), BLOCKS)
    steps = np.ceil(largest.reshape(starts.shape) * 255 / tops[long].astype(np.float64)[:, None])
    # A block after the last posting of a list of 65,536 would start at 65,536; there is none.
    return (starts - starts[:, :1]).astype(np.uint16), np.minimum(steps, 255).astype(np.uint8)


def _joined(windows: list[Postings], dim: int) -> Postings:
    """One file of all windows."""
    postings = np.cumsum([0, *(len(window.rows) for window in windows)])
    tables = np.cumsum([0, *(len(window.block_tops) for window in windows)])
    for window, first, table in zip(windows, postings[:-1], tables[:-1], strict=True):
        window.starts[:] += first
        window.tables[window.tables >= 0] += table
    empty = Postings(
        np.empty((0, dim + 1), np.int64),
        *(np.empty(0, np.uint16), np.empty(0, np.float32)),
        *(np.empty((0, dim), np.int32), np.empty((0, dim), np.float32)),
        *(np.empty((0, BLOCKS), np.uint16), np.empty((0, BLOCKS), np.uint8)),
    )
    names = [field.name for field in fields(Postings)]
    return Postings(*(np.concatenate([getattr(each, name) for each in (empty, *windows)]) for name in names))


def _checked(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Vectors, dim: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], Vectors]:
    indptr = np.ascontiguousarray(indptr, dtype=np.int64)
    indices = np.ascontiguousarray(indices, dtype=np.int32)
    values = np.ascontiguousarray(values, dtype=np.float32)
    if indptr.ndim != 1 or not len(indptr) or indptr[0] or (np.diff(indptr) < 0).any():
        raise InputError("indptr says where rows start: it begins with 0 and never falls")
    if not indices.shape == values.shape == (indptr[-1],):
        raise InputError(
            f"indptr ends at {indptr[-1]:,}; there are {indices.shape} indices and {values.shape} values"
        )
    if len(indices) and not 0 <= indices.min() <= indices.max() < dim:
        raise InputError(f"the columns are from {indices.min()} to {indices.max()}, and there are {dim:,}")
    ends = np.zeros(len(indices), dtype=np.bool_)
    ends[indptr[1:-1][indptr[1:-1] < len(ends)]] = (
        True  # a row starts: its column may be lower than the last one
    )
    if (np.diff(indices)[~ends[1:]] <= 0).any():
        raise InputError("the columns of a row must be ascending, each once")
    if not np.isfinite(values).all():
        raise InputError("some weights are not finite numbers")
    return indptr, indices, values


def _check_arrays(postings: Postings, rows: int, dim: int) -> None:
    """Raise ValueError where the compiled search could read outside of its arrays."""
    if not (type(rows) is type(dim) is int and rows >= 0 and dim >= 0):
        raise ValueError("its size is not known")
    windows, count, tables = -(-rows // WINDOW), len(postings.rows), len(postings.block_tops)
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "starts": (np.int64, (windows, dim + 1)),
        "rows": (np.uint16, (count,)),
        "weights": (np.float32, (count,)),
        "tables": (np.int32, (windows, dim)),
        "tops": (np.float32, (windows, dim)),
        "block_starts": (np.uint16, (tables, BLOCKS)),
        "block_tops": (np.uint8, (tables, BLOCKS)),
    }
    for name, (kind, shape) in expected.items():
        array = getattr(postings, name)
        if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(
                f"{name}.npy has {array.dtype} in the shape {array.shape}, not {kind.__name__} in {shape}"
            )
    starts = postings.starts.ravel()
    if len(starts) and (starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any()):
        raise ValueError("starts.npy does not fit the postings")
    if postings.tables.size and not -1 <= postings.tables.min() <= postings.tables.max() < tables:
        raise ValueError("tables.npy does not fit the tables")


class _FileView(ctypes.Structure):
    _fields_ = (
        *((field.name, ctypes.c_void_p) for field in fields(Postings)),
        *((name, ctypes.c_int64) for name in ("count", "columns", "shift")),
    )


class _QueryView(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("columns", "values")),
        ("terms", ctypes.c_int64),
        ("inside", ctypes.c_void_p),
    )


@cache
def _compiled(level: str) -> Any:  # noqa: ANN401 - a function of a library
    function = library(level).gemel_inverted
    function.restype = ctypes.c_int64
    function.argtypes = (
        *(ctypes.POINTER(_FileView), ctypes.POINTER(_QueryView), ctypes.c_int64, ctypes.c_double),
        *(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    )
    return function

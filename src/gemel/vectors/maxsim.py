"""Late interaction (ColBERT, arXiv 2004.12832): vectors of the tokens of several texts, and how they are compared.

MaxSim, the score of a query and a document: for each token of the query its largest product with a token of the
document, all added up. Every document is compared, and a score depends on its two texts only: not on the other
documents, their order or the threads. scan/native/maxsim.h computes it, with the same bits on every processor that has
fused multiply and add; NumPy does where nothing was compiled, and rounds differently in the last bits.

Vectors take a lot of memory: `MultiVectors` holds them as float32, float16, int8 or 2-bit residuals (ColBERTv2, arXiv
2112.01488). A form is compared as the float32 vectors that `MultiVectors.of` gives. Only int8 is compared as integers,
with queries in 16 bits: twice as many numbers at once, and the same bits everywhere, NumPy included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.files.atomic import atomic_folder
from gemel.options import check_choice
from gemel.types import AnyVectors, ShownResult, Vectors
from gemel.vectors.scan.compare import thread_count
from gemel.vectors.scan.native_scanner import CentroidGroupsView, TokensView, chosen_level, late_library
from gemel.vectors.similarity import checked

LateOutput = Literal["float32", "float16", "int8", "2bit"]

_BLOCK = 1 << 17  # token vectors that are float32 at once while a form is made

_DOCUMENTS = 1024  # of a list of arrays, that are joined and compared at once

_ALONE = 1 << 23  # multiplications below which starting another thread would take longer

_MOST_CENTROIDS = 1 << 16  # the number of one takes two bytes

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)  # of the four codes in a byte

_ROUNDS = 4  # of k-means: later ones hardly move the centroids

_SAMPLE = 32  # token vectors per centroid, for k-means

_GROUP = 64  # centroids around a head

_PROBES = 4  # groups whose centroids are compared with a vector


@dataclass(frozen=True, eq=False)
class Codebook(ShownResult):
    """Centroids of token vectors, and what the two bits of a number add to the centroid nearest to its vector."""

    centroids: Vectors
    """(count, dim)"""
    cutoffs: Vectors
    """(3, dim): a number whose distance from the centroid is above n of them has the code n."""
    weights: Vectors
    """(4, dim): what each code stands for, the mean of the distances that have it."""

    @classmethod
    def of(cls, sample: Vectors, centroids: Vectors, *, threads: int | None = None) -> Codebook:
        """Codes of a quarter of the distances in `sample` each, dimension by dimension, as in ColBERTv2."""
        rest = sample - centroids[GroupedCentroids.of(centroids, threads).nearest(sample, threads)]
        if not len(rest):
            rest = np.zeros((1, centroids.shape[1]), np.float32)
        cutoffs = np.quantile(rest, (0.25, 0.5, 0.75), axis=0).astype(np.float32)
        codes = (rest > cutoffs[:, None]).sum(axis=0)
        weights = np.empty((4, rest.shape[1]), np.float32)
        for code in range(4):
            own = codes == code
            total = np.where(own, rest, 0).sum(axis=0, dtype=np.float64)
            # A code that no distance has, where many are equal, stands for a limit of its range.
            unused = cutoffs[min(code, 2)]
            weights[code] = np.where(own.any(axis=0), total / np.maximum(1, own.sum(axis=0)), unused)
        return cls(centroids, cutoffs, weights)

    def encode(
        self, vectors: Vectors, *, threads: int | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.float16]]:
        """(n, dim / 4) bytes of four codes each, (n,) the nearest centroids, (n,) scales that keep the lengths."""
        nearest = self._groups.nearest(vectors, threads)
        width = _code_bytes(vectors.shape[1])
        codes = np.zeros((len(vectors), width * 4), np.uint8)
        rest = vectors - self.centroids[nearest]
        for cutoff in self.cutoffs:
            codes[:, : rest.shape[1]] += rest > cutoff
        four = codes.reshape(len(codes), width, 4)
        packed: NDArray[np.uint8] = np.bitwise_or.reduce(four << _SHIFTS, axis=2)
        found = _lengths(self.decode(packed, nearest, np.ones(len(packed), np.float16)))
        scales = np.divide(_lengths(vectors), found, out=np.ones_like(found), where=found > 0)
        return packed, nearest, np.minimum(scales, np.finfo(np.float16).max).astype(np.float16)

    @cached_property
    def _groups(self) -> GroupedCentroids:
        return GroupedCentroids.of(self.centroids)

    def decode(
        self, codes: NDArray[np.uint8], nearest: NDArray[np.uint16], scales: NDArray[np.float16]
    ) -> Vectors:
        """(n, dim): the vectors that were encoded, nearly."""
        dim = self.centroids.shape[1]
        each = codes[:, :, None] >> _SHIFTS & 3
        each = each.reshape(len(codes), 4 * codes.shape[1])[:, :dim]
        vectors: Vectors = self.centroids[nearest]
        vectors += np.take_along_axis(self.weights, each, axis=0)
        vectors *= scales.astype(np.float32)[:, None]
        return vectors


def _code_bytes(dim: int) -> int:
    return -(-dim // 4)


def _lengths(vectors: Vectors) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    return lengths


@dataclass(frozen=True, eq=False)
class MultiVectors(ShownResult):
    """The token vectors of several texts, one after the other in one array."""

    vectors: AnyVectors
    """(total tokens, dim) float32, float16 or int8; 2-bit residuals: (total tokens, dim / 4) bytes of four codes."""
    offsets: NDArray[np.int64]
    """(texts + 1,): text i is rows offsets[i] to offsets[i + 1]."""
    tokens: tuple[str, ...]
    """(total tokens,) as the vocabulary writes them; empty where only vectors are known."""
    scales: NDArray[Any] | None = None
    """(total tokens,) of int8 (float32) and 2-bit residuals (float16): a vector is its numbers times its scale."""
    nearest: NDArray[np.uint16] | None = None
    """(total tokens,) of 2-bit residuals: the centroid that they are added to."""
    codebook: Codebook | None = None
    """Of 2-bit residuals."""

    def __post_init__(self) -> None:
        _check_parts(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return int((self.vectors if self.codebook is None else self.codebook.centroids).shape[1])

    @property
    def form(self) -> str:
        """float32, float16, int8 or 2bit."""
        return "2bit" if self.codebook is not None else str(self.vectors.dtype)

    def of(self, text: int) -> Vectors:
        """(tokens, dim) float32: the vectors of one text."""
        rows = self._rows(text)
        return self.rows(rows.start, rows.stop)

    def rows(self, begin: int, end: int) -> Vectors:
        """(end - begin, dim) float32: the vectors of some tokens, whichever texts they belong to."""
        part, scales = self.vectors[begin:end], None if self.scales is None else self.scales[begin:end]
        if self.codebook is not None and self.nearest is not None and scales is not None:
            return self.codebook.decode(part, self.nearest[begin:end], scales)
        plain: Vectors = part.astype(np.float32, copy=False)
        return plain if scales is None else plain * scales[:, None]

    @cached_property
    def compiled_view(self) -> tuple[TokensView, list[NDArray[Any]]]:
        """These vectors as compiled code reads them, and the arrays that it points to."""
        book, form = self.codebook, self.form
        arrays = {
            "values": self.vectors,
            "offsets": self.offsets.astype(np.int64, copy=False),
            "scales": self.scales,
            "nearest": self.nearest,
            "centroids": None if book is None else book.centroids,
            "weights": None if book is None else book.weights,
        }
        if self.scales is not None:  # of another type where the caller made them
            arrays["scales"] = self.scales.astype(np.float32 if form == "int8" else np.float16, copy=False)
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        pointers = {name: array.ctypes.data for name, array in whole.items()}
        number = get_args(LateOutput).index(form)
        return TokensView(form=number, dim=self.dim, **pointers), list(whole.values())

    def __getstate__(self) -> dict[str, Any]:
        """All but the view: its pointers are those of this process."""
        return {name: value for name, value in vars(self).items() if name != "compiled_view"}

    def tokens_of(self, text: int) -> tuple[str, ...]:
        """The tokens of one text, in the order of `of`."""
        return self.tokens[self._rows(text)]

    def as_form(
        self, output: str, *, codebook: Codebook | None = None, threads: int | None = None
    ) -> MultiVectors:
        """The same vectors as float32, float16, int8 with a scale for each of them, or 2-bit residuals.

        `codebook`: of the residuals, for example that of documents that were stored before; None: one is made from
        these vectors.
        """
        check_choice("output", output, get_args(LateOutput))
        if self.form == output and codebook is None:
            return self
        if output == "2bit":
            codebook = codebook or make_codebook(self, threads=threads)
            return self._in_blocks(
                {
                    "vectors": np.empty((len(self.vectors), _code_bytes(self.dim)), np.uint8),
                    "nearest": np.empty(len(self.vectors), np.uint16),
                    "scales": np.empty(len(self.vectors), np.float16),
                },
                lambda part: codebook.encode(part, threads=threads),
                codebook,
            )
        plain = {"vectors": np.empty((len(self.vectors), self.dim), output)}
        if output != "int8":
            return self._in_blocks(plain, lambda part: (part,))
        return self._in_blocks({**plain, "scales": np.empty(len(self.vectors), np.float32)}, _int8)

    def _in_blocks(
        self,
        out: Mapping[str, NDArray[Any]],
        form: Callable[[Vectors], tuple[NDArray[Any], ...]],
        codebook: Codebook | None = None,
    ) -> MultiVectors:
        """Fill the arrays of another form, so that only a block of vectors is float32 at a time."""
        for begin in range(0, len(self.vectors), _BLOCK):
            end = min(begin + _BLOCK, len(self.vectors))
            for array, part in zip(out.values(), form(self.rows(begin, end)), strict=True):
                array[begin:end] = part
        return MultiVectors(offsets=self.offsets, tokens=self.tokens, codebook=codebook, **out)

    def save(self, folder: str | Path) -> None:
        """Write the vectors to `folder`, as arrays of NumPy; the names of the tokens are not stored."""
        with atomic_folder(Path(folder)) as working:
            for name, array in self._arrays().items():
                np.save(working / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: str | Path) -> MultiVectors:
        """What `save` wrote. Vectors stay on disk and are read when they are compared."""
        arrays = {path.stem: path for path in Path(folder).glob("*.npy") if path.stem in _FILES}
        if not arrays.keys() >= {"vectors", "offsets"}:
            raise InputError(
                f"{folder} has no saved token vectors: there must be vectors.npy and offsets.npy"
            )
        read = {name: read_array(path) for name, path in arrays.items()}
        parts = [read.pop(name) for name in _CODEBOOK if name in read]
        book = Codebook(*parts) if len(parts) == len(_CODEBOOK) else None
        return cls(tokens=(), codebook=book, **read)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        book = self.codebook
        every = {
            "vectors": self.vectors,
            "offsets": self.offsets,
            "scales": self.scales,
            "nearest": self.nearest,
        }
        if book is not None:
            every |= {"centroids": book.centroids, "cutoffs": book.cutoffs, "weights": book.weights}
        return {name: array for name, array in every.items() if array is not None}

    def _rows(self, text: int) -> slice:
        if not -len(self) <= text < len(self):
            raise IndexError(f"there are {len(self)} texts, text {text} was requested")
        text %= len(self)
        return slice(int(self.offsets[text]), int(self.offsets[text + 1]))

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for text in range(len(self)):
            rows = self._rows(text)
            yield {"text": text, "vectors": rows.stop - rows.start, "tokens": " ".join(self.tokens_of(text))}


_CODEBOOK = ("centroids", "cutoffs", "weights")

_FILES = frozenset({"vectors", "offsets", "scales", "nearest", *_CODEBOOK})


def read_array(path: Path) -> NDArray[Any]:
    """The array in a file of NumPy, left on disk; never pickled objects."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy reads the header as Python, so a damaged one raises any error of that
        raise InputError(f"{path} cannot be read as an array: {error}. Save it again") from error
    return array


def _check_parts(stored: MultiVectors) -> None:
    """Compiled code reads what the offsets say, so they must be right."""
    vectors, offsets, book = stored.vectors, stored.offsets, stored.codebook
    count = len(vectors)
    problem = None
    if vectors.ndim != 2 or vectors.dtype not in (np.float32, np.float16, np.int8, np.uint8):
        problem = f"vectors are {vectors.dtype} {vectors.shape}"
    elif offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        problem = f"offsets are {offsets.dtype} {offsets.shape}"
    elif offsets[0] < 0 or offsets[-1] > count or (offsets[1:] < offsets[:-1]).any():
        problem = f"offsets must rise from 0 to {count:,}"
    elif (vectors.dtype == np.uint8) != (book is not None) or (book is None) != (stored.nearest is None):
        problem = "2-bit residuals need a codebook and the nearest centroids, other vectors have none"
    elif (vectors.dtype.itemsize == 1) != (stored.scales is not None):
        problem = "int8 and 2-bit residuals need scales, other vectors have none"
    elif any(part is not None and part.shape != (count,) for part in (stored.scales, stored.nearest)):
        problem = f"scales and nearest centroids must be {count:,}, one per vector"
    elif book is not None and stored.nearest is not None:
        problem = _problem_of_codebook(book, stored.nearest, vectors.shape[1])
    if problem is not None:
        raise InputError(f"these token vectors do not fit together: {problem}")


def _problem_of_codebook(book: Codebook, nearest: NDArray[np.uint16], width: int) -> str | None:
    count, dim = book.centroids.shape if book.centroids.ndim == 2 else (0, 0)
    shapes = (book.cutoffs.shape, book.weights.shape)
    if any(part.dtype != np.float32 for part in (book.centroids, book.cutoffs, book.weights)):
        return "the codebook must be float32"
    if _code_bytes(dim) != width or shapes != ((3, dim), (4, dim)):
        return f"the codebook is for other vectors: {book.centroids.shape}, {shapes[0]} and {shapes[1]}"
    if nearest.dtype != np.uint16 or nearest.max(initial=0) >= max(1, count):
        return f"nearest centroids must be uint16 below {count:,}"
    return None


def _int8(vectors: Vectors) -> tuple[NDArray[np.int8], Vectors]:
    largest = np.abs(vectors).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def join_texts(parts: Sequence[Vectors], tokens: Iterable[str], dim: int) -> MultiVectors:
    """The token vectors (tokens, dim) of each text as one result."""
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    vectors = np.concatenate(parts) if parts else np.zeros((0, dim), np.float32)
    return MultiVectors(vectors, offsets, tuple(tokens))


# ---- centroids ----


def make_codebook(documents: MultiVectors, *, threads: int | None = None) -> Codebook:
    """Centroids and codes from a sample of the token vectors; equal documents give an equal codebook."""
    sample, centroids = make_centroids(documents, threads=threads)
    return Codebook.of(sample, centroids, threads=threads)


def make_centroids(documents: MultiVectors, *, threads: int | None = None) -> tuple[Vectors, Vectors]:
    """A sample of the token vectors, and their centroids by k-means: as many as `centroid_count` says."""
    count = centroid_count(len(documents.vectors))
    sample = _sample(documents, _SAMPLE * count)
    return sample, _k_means(sample, count, threads)


def centroid_count(tokens: int) -> int:
    """The largest power of two that is at most 16 times the square root of the token vectors, and 65,536."""
    most = min(16 * int(tokens**0.5), tokens // 4, _MOST_CENTROIDS)
    return 1 << max(0, most.bit_length() - 1)


def _sample(documents: MultiVectors, size: int) -> Vectors:
    """At most `size` token vectors, in their order."""
    total = int(documents.offsets[-1])
    if total <= size:
        return documents.rows(0, total)
    # Runs of neighbors: single rows of a file on disk would each read a page.
    run = 16
    starts = np.random.default_rng(0).choice(total // run, size // run, replace=False) * run
    return np.concatenate([documents.rows(start, start + run) for start in np.sort(starts).tolist()])


def _k_means(sample: Vectors, count: int, threads: int | None) -> Vectors:
    """(count, dim) centroids by Lloyd's algorithm, from random vectors; one that is nearest to none moves."""
    random = np.random.default_rng(0)
    if not len(sample):
        return np.zeros((count, sample.shape[1]), np.float32)
    centroids = sample[np.sort(random.choice(len(sample), count, replace=len(sample) < count))]
    for _ in range(_ROUNDS):
        nearest = GroupedCentroids.of(centroids, threads).nearest(sample, threads)
        order = np.argsort(nearest, kind="stable")
        sizes = np.bincount(nearest, minlength=count)
        used = sizes > 0
        starts = (np.cumsum(sizes) - sizes)[used]
        sums = np.add.reduceat(sample[order], starts, axis=0, dtype=np.float64)
        centroids = np.empty_like(centroids)
        centroids[used] = sums / sizes[used, None]
        centroids[~used] = sample[random.choice(len(sample), int((~used).sum()))]
    return centroids


@dataclass(frozen=True, eq=False)
class GroupedCentroids:
    """Centroids in groups around heads, so that a vector is compared with those of a few groups only."""

    heads: Vectors
    """(groups, dim)"""
    centroids: Vectors
    """(count, dim), group by group."""
    offsets: NDArray[np.int64]
    """(groups + 1,)"""
    numbers: NDArray[np.int32]
    """(count,) where each of `centroids` was."""

    @classmethod
    def of(cls, centroids: Vectors, threads: int | None = None) -> GroupedCentroids:
        """Groups of 64 or so; few centroids are one group."""
        count = len(centroids) // _GROUP
        if count < 2 * _PROBES:
            whole = np.array([0, len(centroids)])
            return cls(centroids[:1], centroids, whole, np.arange(len(centroids), dtype=np.int32))
        heads = _k_means(centroids, count, threads)
        group = cls.of(heads).nearest(centroids, threads)
        sizes = np.bincount(group, minlength=count)
        order = np.argsort(group, kind="stable").astype(np.int32)
        used, offsets = sizes > 0, np.zeros(int((sizes > 0).sum()) + 1, np.int64)
        np.cumsum(sizes[used], out=offsets[1:])
        return cls(heads[used], centroids[order], offsets, order)

    def nearest(self, vectors: Vectors, threads: int | None = None) -> NDArray[np.uint16]:
        """(n,) the nearest centroid of each vector among the groups with the nearest heads; ties to the lower one.

        It depends on the vector and the centroids alone.
        """
        out, level = np.empty(len(vectors), np.uint16), chosen_level()
        if level == "numpy":
            for row, vector in enumerate(vectors):
                out[row] = self._numpy_nearest(vector)
            return out
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        arrays = [
            np.ascontiguousarray(part) for part in (self.heads, self.centroids, self.offsets, self.numbers)
        ]
        view = CentroidGroupsView(*(array.ctypes.data for array in arrays), *self.heads.shape)
        several = 1 if vectors.size < _ALONE else thread_count(threads)
        late_library(level).gemel_nearest_centroids(
            view, vectors.ctypes.data, len(vectors), _PROBES, several, out.ctypes.data
        )
        return out

    def _numpy_nearest(self, vector: Vectors) -> int:
        near = np.argsort(-_nearness(vector, self.heads), kind="stable")[:_PROBES]
        rows = np.concatenate([np.arange(self.offsets[group], self.offsets[group + 1]) for group in near])
        score = _nearness(vector, self.centroids[rows])
        return int(self.numbers[rows[score == score.max()]].min())


def _nearness(vector: Vectors, others: Vectors) -> Vectors:
    """Largest for the nearest one."""
    nearness: Vectors = others @ vector - (np.square(others, dtype=np.float64).sum(axis=1) / 2).astype(
        np.float32
    )
    return nearness


# ---- scores ----


def maxsim(
    query: ArrayLike | MultiVectors,
    documents: MultiVectors | Sequence[ArrayLike],
    *,
    threads: int | None = None,
) -> Vectors:
    """(n,) the MaxSim of one query with each document, in their order; (q, n) for the `MultiVectors` of q queries.

    `query`: the token vectors (tokens, dim) of one query, as `MultiVectors.of` gives them. `documents`: `MultiVectors`,
    or a list of arrays (tokens, dim). A document without tokens scores minus infinity.
    """
    if isinstance(query, MultiVectors):
        queries = [query.of(position) for position in range(len(query))]
    else:
        queries = [checked(query, "query")]
    if len(queries) == 1 and isinstance(documents, MultiVectors):  # the usual call: nothing to copy
        scores = document_scores(queries[0], documents, threads=threads)
        return scores[None] if isinstance(query, MultiVectors) else scores
    table = np.empty((len(queries), len(documents)), dtype=np.float32)
    begin = 0
    for block in _blocks(documents, queries[0].shape[1] if queries else 0):
        for row, each in zip(table, queries, strict=True):
            row[begin : begin + len(block)] = document_scores(each, block, threads=threads)
        begin += len(block)
    return table if isinstance(query, MultiVectors) else table[0]


def _blocks(documents: MultiVectors | Sequence[ArrayLike], dim: int) -> Iterator[MultiVectors]:
    """The documents as `MultiVectors`: all of them, or some of a list at a time."""
    if isinstance(documents, MultiVectors):
        yield documents
        return
    for begin in range(0, len(documents), _DOCUMENTS):
        parts = [
            checked(each, f"documents[{number}]")
            for number, each in enumerate(documents[begin : begin + _DOCUMENTS], begin)
        ]
        for part in parts:
            _check_dim(dim, part.shape[1])
        yield join_texts(parts, (), dim)


def _check_dim(query: int, document: int) -> None:
    if query != document:
        raise InputError(
            f"vectors of the query have {query} numbers and those of a document {document}. They must come from the "
            "same model"
        )


def document_scores(
    query: Vectors,
    documents: MultiVectors,
    chosen: NDArray[np.int64] | None = None,
    *,
    threads: int | None = None,
) -> Vectors:
    """(n,) the MaxSim of one query with the documents at the positions `chosen`; None: with all."""
    _check_dim(query.shape[1], documents.dim)
    count, level = len(documents) if chosen is None else len(chosen), chosen_level()
    out = np.empty(count, dtype=np.float32)
    query = np.ascontiguousarray(query, dtype=np.float32)
    if level == "numpy":
        score = _int8_score(query) if documents.form == "int8" else _float_score(query)
        for number, position in enumerate(range(count) if chosen is None else chosen.tolist()):
            out[number] = score(documents, position)
        return out
    work = query.size * (int(documents.offsets[-1]) // max(1, len(documents))) * count
    several = 1 if work < _ALONE else thread_count(threads)
    view, _ = documents.compiled_view
    where = None if chosen is None else np.ascontiguousarray(chosen, dtype=np.int64)
    pointer = None if where is None else where.ctypes.data
    late_library(level).gemel_maxsim(
        query.ctypes.data, len(query), view, pointer, count, several, out.ctypes.data
    )
    return out


def _float_score(query: Vectors) -> Callable[[MultiVectors, int], np.float32]:
    def score(documents: MultiVectors, position: int) -> np.float32:
        document = documents.of(position)
        if not len(document):
            return np.float32(-np.inf)
        # BLAS picks its kernel, and so the bits, by the shapes: those of the two texts, never of several documents. The
        # product of an array with itself would be another kernel again.
        other: Any = document.copy() if np.may_share_memory(query, document) else document
        products = query @ other.T  # (query tokens, document tokens)
        return np.float32(products.max(axis=1).sum())

    return score


def _int8_score(query: Vectors) -> Callable[[MultiVectors, int], np.float32]:
    """As `QueryIntegers` of native/maxsim.h: float64 holds its sums of integers exactly."""
    most = np.float32(max(1, min(32767, ((1 << 24) - 1) // max(1, query.shape[1]))))
    largest = np.abs(query).max(axis=1, initial=0)
    used = largest >= np.float32(1e-30)
    divisor = np.where(used, largest, np.float32(1))
    steps = np.where(used, largest / most, np.float32(0))
    integers = np.rint(query * np.where(used, most / divisor, np.float32(0))[:, None]).astype(np.float64)

    def score(documents: MultiVectors, position: int) -> np.float32:
        begin, end = documents.offsets[position], documents.offsets[position + 1]
        if begin == end or documents.scales is None:
            return np.float32(-np.inf)
        sums = integers @ documents.vectors[begin:end].astype(np.float64).T  # (query tokens, document tokens)
        best = (sums.astype(np.float32) * documents.scales[begin:end].astype(np.float32)).max(axis=1)
        total = 0.0
        for value in (best * steps).tolist():  # one after the other: NumPy would add in another order
            total += value
        return np.float32(total) + np.float32(0)

    return score

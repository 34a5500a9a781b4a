"""Late interaction (ColBERT, arXiv 2004.12832): vectors of the tokens of several texts, and how they are compared.

MaxSim, the score of a query and a document: for each token of the query its largest product with a token of the
document, all added up. Every document is compared, and a score depends on its two texts only: not on the other
documents, nor on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.options import check_choice
from gemel.types import AnyVectors, ShownResult, Vectors
from gemel.vectors.similarity import checked

_FORMS = ("float32", "float16", "int8")


@dataclass(frozen=True, eq=False)
class MultiVectors(ShownResult):
    """The token vectors of several texts, one after the other in one array."""

    vectors: AnyVectors
    """(total tokens, dim) float32, float16 or int8."""
    offsets: NDArray[np.int64]
    """(texts + 1,): text i is rows offsets[i] to offsets[i + 1]."""
    tokens: tuple[str, ...]
    """(total tokens,) as the vocabulary writes them; empty where only vectors are known."""
    scales: Vectors | None = None
    """(total tokens,) of int8: a vector is its integers times its scale."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])

    def of(self, text: int) -> Vectors:
        """(tokens, dim) float32: the vectors of one text."""
        rows = self._rows(text)
        part = self.vectors[rows].astype(np.float32, copy=False)
        return part if self.scales is None else part * self.scales[rows, None]

    def tokens_of(self, text: int) -> tuple[str, ...]:
        """The tokens of one text, in the order of `of`."""
        return self.tokens[self._rows(text)]

    def as_form(self, output: str) -> MultiVectors:
        """The same vectors as float32, float16, or int8 with a scale for each of them."""
        check_choice("output", output, _FORMS)
        if self.vectors.dtype == output:
            return self
        plain = self.vectors.astype(np.float32)
        plain = plain if self.scales is None else plain * self.scales[:, None]
        if output != "int8":
            return MultiVectors(plain.astype(output), self.offsets, self.tokens)
        largest = np.abs(plain).max(axis=1, initial=0)
        scales = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
        return MultiVectors(
            np.rint(plain / scales[:, None]).astype(np.int8), self.offsets, self.tokens, scales
        )

    def _rows(self, text: int) -> slice:
        if not -len(self) <= text < len(self):
            raise IndexError(f"there are {len(self)} texts, text {text} was requested")
        text %= len(self)
        return slice(int(self.offsets[text]), int(self.offsets[text + 1]))

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for text in range(len(self)):
            rows = self._rows(text)
            yield {"text": text, "vectors": rows.stop - rows.start, "tokens": " ".join(self.tokens_of(text))}


def join_texts(parts: Sequence[Vectors], tokens: Iterable[str], dim: int) -> MultiVectors:
    """The token vectors (tokens, dim) of each text as one result."""
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    vectors = np.concatenate(parts) if parts else np.zeros((0, dim), np.float32)
    return MultiVectors(vectors, offsets, tuple(tokens))


def maxsim(query: ArrayLike | MultiVectors, documents: MultiVectors | Sequence[ArrayLike]) -> Vectors:
    """(n,) the MaxSim of one query with each document, in their order; (q, n) for the `MultiVectors` of q queries.

    `query`: the token vectors (tokens, dim) of one query, as `MultiVectors.of` gives them. `documents`: `MultiVectors`,
    or a list of arrays (tokens, dim). A document without tokens scores minus infinity.
    """
    if isinstance(query, MultiVectors):
        queries = [query.of(position) for position in range(len(query))]
    else:
        queries = [checked(query, "query")]
    table = np.empty((len(queries), len(documents)), dtype=np.float32)
    for column, document in enumerate(_each(documents)):
        table[:, column] = [_score(each, document) for each in queries]
    return table if isinstance(query, MultiVectors) else table[0]


def _each(documents: MultiVectors | Sequence[ArrayLike]) -> Iterator[Vectors]:
    """One document at a time, so that stored forms take memory as float32 only while they are compared."""
    if isinstance(documents, MultiVectors):
        yield from (documents.of(position) for position in range(len(documents)))
    else:
        yield from (checked(each, f"documents[{number}]") for number, each in enumerate(documents))


def _score(query: Vectors, document: Vectors) -> np.float32:
    if query.shape[1] != document.shape[1]:
        raise InputError(
            f"vectors of the query have {query.shape[1]} numbers and those of a document {document.shape[1]}. They "
            "must come from the same model"
        )
    if not len(document):
        return np.float32(-np.inf)
    # BLAS picks its kernel, and so the bits, by the shapes: those of the two texts, never of several documents. The
    # product of an array with itself would be another kernel again.
    other: Any = document.copy() if np.may_share_memory(query, document) else document
    products = query @ other.T  # (query tokens, document tokens)
    return np.float32(products.max(axis=1).sum())

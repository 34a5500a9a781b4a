"""What callers hand to an index as ids and queries, checked once at the door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError
from gemel.index.field_types import check_characters
from gemel.index.incoming import checked_id, checked_vectors
from gemel.index.state import State
from gemel.text.tokenizer import check_texts
from gemel.types import Vectors


def checked_ids(ids: Iterable[str | int]) -> list[str]:
    """Ids as strings."""
    if isinstance(ids, str | bytes | int):
        raise InputError(f"ids takes a list, got one. Write [{ids!r}]")
    return [checked_id(id_, f"ids[{place}]") for place, id_ in enumerate(ids)]


def one_query(query: str | ArrayLike) -> Sequence[str] | ArrayLike:
    """The query of `search` as `search_many` takes it."""
    if isinstance(query, str):
        return [query]
    try:
        vector = np.asarray(query, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"a query is a text or a vector, got {type(query).__name__}") from None
    if vector.ndim != 1:
        raise InputError(f"search takes one query, got an array of shape {vector.shape}. Use search_many")
    return vector[None]


def query_texts(queries: Sequence[str] | ArrayLike) -> list[str] | None:
    """The queries, if they are texts; None: they should be vectors."""
    if isinstance(queries, str | bytes):
        raise InputError("search_many takes a list of queries, got one string. Use search")
    listed = queries if isinstance(queries, np.ndarray) else list(queries)  # type: ignore[arg-type]
    if isinstance(listed, np.ndarray) and listed.dtype.kind not in "OU":
        return None
    if len(listed) and not any(isinstance(query, str) for query in listed):
        return None
    texts = check_texts(listed, "queries")
    for place, text in enumerate(texts):
        check_characters(f"queries[{place}]", text)
    return texts


def query_vectors(state: State, queries: ArrayLike) -> Vectors:
    """Queries that came as vectors, as vectors of the table."""
    dim = state.coder.query_dim or state.dim
    return state.coder.carried(checked_vectors(queries, dim))

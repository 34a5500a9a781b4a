"""gemel in LangChain: `GemelEmbeddings`, and `GemelVectorStore` over an index. Needs the package langchain-core."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.index.index import Index, Where
from gemel.index.open import open_index
from gemel.index.query import Hit
from gemel.integrations.framework import DEFAULT_MODEL, QueryDocumentEncoder, metadata_of, store_fields
from gemel.model import Model
from gemel.options import EncodeOptions

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "langchain_core":
        raise
    raise MissingExtra("gemel.integrations.langchain", "langchain-core", "langchain") from error


__all__ = ["GemelEmbeddings", "GemelVectorStore"]


class GemelEmbeddings(Embeddings):  # type: ignore[misc]
    """LangChain's Embeddings with a gemel model: queries and documents with their prompts of the checkpoint.

    `options` are fields of `gemel.EncodeOptions`: `GemelEmbeddings("all-MiniLM-L6-v2", dim=128)`. The async calls run
    in a thread; the model releases the GIL.
    """

    def __init__(self, model: Model | str | Path = DEFAULT_MODEL, **options: Any) -> None:
        self._encoder = QueryDocumentEncoder(model, options)

    @property
    def model(self) -> Model:
        """The model, loaded on first use."""
        return self._encoder.model()

    @property
    def options(self) -> dict[str, Any]:
        """The given options."""
        return dict(self._encoder.options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._encoder.queries([text])[0]

    def __repr__(self) -> str:
        return f"GemelEmbeddings({self._encoder.name!r})"


_EVERY = {"not": {"id": None}}  # true for all documents


class GemelVectorStore(VectorStore):  # type: ignore[misc]
    """LangChain's VectorStore with a gemel index, which encodes documents with its own model.

    embedding: the encoder for an index of vectors only (`open_index(location, dim=n)`).
    fields: metadata to filter by. None: all that is a text, a number or a bool.
    whole: a search returns whole documents; else the best passage of a document that is stored in several.

    Searches take `filter`, which is `where` of `Index.search`, and the other options of that call, such as
    `hybrid=True`.
    """

    def __init__(
        self,
        index: Index,
        embedding: Embeddings | None = None,
        *,
        fields: Collection[str] | None = None,
        whole: bool = False,
    ) -> None:
        if embedding is not None and index.encode_options is not None:
            raise InputError(f"the index {index.location} encodes with its own model. Leave embedding out")
        self.index = index
        self._embedding, self._fields, self._whole = embedding, fields, whole

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        location: str | Path = ":memory:",
        **settings: Any,
    ) -> Self:
        """A store of these texts, in a new index or added to an existing one at `location`, as in `open_index`.

        With an embedding that is no GemelEmbeddings the index has vectors only. `settings` are those of the class.
        """
        if isinstance(embedding, GemelEmbeddings):
            changes = embedding.options
            store = cls(open_index(location, embedding.model, options=EncodeOptions(**changes)), **settings)
        else:
            dim = len(embedding.embed_query("how many numbers?"))
            store = cls(open_index(location, dim=dim), embedding, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @cached_property
    def embeddings(self) -> Embeddings | None:
        """The given embedding, or the model of the index with its options."""
        options = self.index.encode_options
        model = None if options is None else self.index.model
        if options is None or model is None:
            return self._embedding
        defaults = asdict(EncodeOptions())
        changes = {name: value for name, value in asdict(options).items() if value != defaults[name]}
        return GemelEmbeddings(model, **changes)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_: Any,
    ) -> list[str]:
        """Add texts and return their ids, random where none is given. A document with an existing id is replaced.

        All values of a metadata field must have the type of the first ones. Lists, mappings, None, and metadata whose
        names cannot be fields of an index are stored but cannot be filtered by.
        """
        listed = list(texts)
        all_ids = [id_ or str(uuid4()) for id_ in (ids or [None] * len(listed))]
        rows = store_fields(self.index, metadatas or [{}] * len(listed), self._fields)
        if listed:
            vectors = None if self._embedding is None else self._embedding.embed_documents(listed)
            self.index.upsert(listed, ids=all_ids, fields=rows, vectors=vectors)
        return all_ids

    def delete(self, ids: list[str] | None = None, *, filter: Where = None, **_: Any) -> bool:
        """Delete by ids or by a condition; with neither, everything, as in LangChain. Unknown ids are ignored."""
        self.index.delete(ids, where=_EVERY if ids is None and not filter else filter or None)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Whole documents in the order of the ids; unknown ids are left out."""
        return [
            Document(id=each.id, page_content=each.text, metadata=metadata_of(each.fields))
            for each in self.index.get(ids)
        ]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[Document]:
        """The best k documents, best first."""
        return self._documents(self._hits(query, k, filter, options))

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """The best k documents with their scores: the cosine, unless `hybrid` or `rerank` is given."""
        hits = self._hits(query, k, filter, options)
        return list(zip(self._documents(hits), [hit.score for hit in hits], strict=True))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[Document]:
        """`similarity_search` for the vector of a query."""
        return self._documents(list(self.index.search(embedding, k, where=filter or None, **options)))

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where = None,
        **options: Any,
    ) -> list[Document]:
        """k of the best `fetch_k`, near to the query (lambda_mult 1) and far from one another (0)."""
        if self.embeddings is None:
            raise InputError(f"the index {self.index.location} has no model, so it cannot encode a text")
        vector = self.embeddings.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, filter=filter, **options
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where = None,
        **options: Any,
    ) -> list[Document]:
        """`max_marginal_relevance_search` for the vector of a query."""
        hits = list(self.index.search(embedding, max(k, fetch_k), where=filter or None, **options))
        vectors = self.index.passage_vectors(hits)
        candidates = [(hit, vector) for hit, vector in zip(hits, vectors, strict=True) if vector is not None]
        query = np.asarray(embedding, dtype=np.float32)
        chosen = maximal_marginal_relevance(query, [vector for _, vector in candidates], lambda_mult, k)
        return self._documents([candidates[i][0] for i in chosen])

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """LangChain requires 0 to 1: the cosine, or 0 where it is negative."""
        hits = self._hits(query, k, filter, options)
        relevance = [min(1.0, max(0.0, hit.cosine or 0.0)) for hit in hits]
        return list(zip(self._documents(hits), relevance, strict=True))

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        return await asyncio.to_thread(self._similarity_search_with_relevance_scores, query, k, **options)

    def _hits(self, query: str, k: int, where: Where, options: dict[str, Any]) -> list[Hit]:
        text_or_vector = query if self._embedding is None else self._embedding.embed_query(query)
        return list(self.index.search(text_or_vector, k, where=where or None, **options))

    def _documents(self, hits: Sequence[Hit]) -> list[Document]:
        texts = (
            {each.id: each.text for each in self.index.get([hit.id for hit in hits])} if self._whole else {}
        )
        return [
            Document(id=hit.id, page_content=texts.get(hit.id, hit.text), metadata=metadata_of(hit.fields))
            for hit in hits
        ]

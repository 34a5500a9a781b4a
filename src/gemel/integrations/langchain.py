"""gemel in LangChain: `GemelEmbeddings`, and `GemelVectorStore` over an index. Needs the package langchain-core.

`GemelEmbeddings`: a model as LangChain's Embeddings.

`GemelVectorStore`: an index as LangChain's VectorStore. Its async calls are LangChain's own, in a thread.
"""

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
    """Vectors by a gemel model: queries with the checkpoint's query prompt, documents with its document prompt.

    `options` are fields of `gemel.EncodeOptions`: `GemelEmbeddings("all-MiniLM-L6-v2", dim=128)`. The async calls run
    in a thread; the model computes without holding the interpreter.
    """

    def __init__(self, model: Model | str | Path = DEFAULT_MODEL, **options: Any) -> None:
        self._sides = QueryDocumentEncoder(model, options)

    @property
    def model(self) -> Model:
        """Loaded if it is not yet."""
        return self._sides.model()

    @property
    def options(self) -> dict[str, Any]:
        """As they were given."""
        return dict(self._sides.options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._sides.documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._sides.queries([text])[0]

    def __repr__(self) -> str:
        return f"GemelEmbeddings({self._sides.name!r})"


_EVERY = {"not": {"id": None}}  # a condition that all documents meet


class GemelVectorStore(VectorStore):  # type: ignore[misc]
    """Documents in a gemel index, encoded by the index's own model.

    embedding: what encodes for an index of vectors only (`open_index(place, dim=n)`).
    fields: metadata that can be filtered by. None: all of it that is a text, a number or a bool.
    whole: a search answers with whole documents; else one that is stored as several passages answers with the best.

    Searches take `filter`, a condition as `Index.search` takes it as `where`, and the options of that call, such as
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
            raise InputError(
                f"the index {index.location} encodes with the model that it was made with. Leave embedding out"
            )
        self.index = index
        self._foreign, self._fields, self._whole = embedding, fields, whole

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        place: str | Path = ":memory:",
        **settings: Any,
    ) -> Self:
        """A store of these texts. `place` is that of `open_index`; an index that is there is added to.

        An embedding that is no GemelEmbeddings makes an index of vectors only. `settings` are those of the class.
        """
        if isinstance(embedding, GemelEmbeddings):
            changes = embedding.options
            store = cls(open_index(place, embedding.model, options=EncodeOptions(**changes)), **settings)
        else:
            dim = len(embedding.embed_query("how many numbers?"))
            store = cls(open_index(place, dim=dim), embedding, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @cached_property
    def embeddings(self) -> Embeddings | None:
        """What encodes: the embedding that was given, or the model of the index with its options."""
        options = self.index.encode_options
        model = None if options is None else self.index.model
        if options is None or model is None:
            return self._foreign
        usual = asdict(EncodeOptions())
        changes = {name: value for name, value in asdict(options).items() if value != usual[name]}
        return GemelEmbeddings(model, **changes)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_: Any,
    ) -> list[str]:
        """Their ids, made up where none is given. A document under an id that is there is replaced.

        Values of one metadata have one type: the first ones decide which, others are an error. Those that are lists,
        mappings or None, and names that cannot be a field of an index, are kept but cannot be filtered by.
        """
        listed = list(texts)
        named = [id_ or str(uuid4()) for id_ in (ids or [None] * len(listed))]
        rows = store_fields(self.index, metadatas or [{}] * len(listed), self._fields)
        if listed:
            vectors = None if self._foreign is None else self._foreign.embed_documents(listed)
            self.index.upsert(listed, ids=named, fields=rows, vectors=vectors)
        return named

    def delete(self, ids: list[str] | None = None, *, filter: Where = None, **_: Any) -> bool:
        """By ids or by a condition; neither: everything, as LangChain has it. Ids that are not there are no error."""
        self.index.delete(ids, where=_EVERY if ids is None and not filter else filter or None)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Whole documents in the order asked; ids that are not there are left out."""
        return [
            Document(id=found.id, page_content=found.text, metadata=metadata_of(found.fields))
            for found in self.index.get(ids)
        ]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[Document]:
        """The best k documents, best first."""
        return self._documents(self._hits(query, k, filter, options))

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """With the score that ordered them, more is better: the cosine, unless `hybrid` or `rerank` is asked for."""
        hits = self._hits(query, k, filter, options)
        return list(zip(self._documents(hits), [hit.score for hit in hits], strict=True))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[Document]:
        """As `similarity_search`, for a vector of what encodes."""
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
        """As `max_marginal_relevance_search`, for a vector of what encodes."""
        found = list(self.index.search(embedding, max(k, fetch_k), where=filter or None, **options))
        vectors = self.index.passage_vectors(found)
        there = [(hit, vector) for hit, vector in zip(found, vectors, strict=True) if vector is not None]
        query = np.asarray(embedding, dtype=np.float32)
        chosen = maximal_marginal_relevance(query, [vector for _, vector in there], lambda_mult, k)
        return self._documents([there[place][0] for place in chosen])

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, *, filter: Where = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """LangChain wants 0 to 1: the cosine, whatever ordered the hits; below 0 is 0."""
        hits = self._hits(query, k, filter, options)
        relevance = [min(1.0, max(0.0, hit.cosine)) for hit in hits]
        return list(zip(self._documents(hits), relevance, strict=True))

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        return await asyncio.to_thread(self._similarity_search_with_relevance_scores, query, k, **options)

    def _hits(self, query: str, k: int, where: Where, options: dict[str, Any]) -> list[Hit]:
        asked = query if self._foreign is None else self._foreign.embed_query(query)
        return list(self.index.search(asked, k, where=where or None, **options))

    def _documents(self, hits: Sequence[Hit]) -> list[Document]:
        texts = (
            {each.id: each.text for each in self.index.get([hit.id for hit in hits])} if self._whole else {}
        )
        return [
            Document(id=hit.id, page_content=texts.get(hit.id, hit.text), metadata=metadata_of(hit.fields))
            for hit in hits
        ]

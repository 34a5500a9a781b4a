"""gemel in LlamaIndex: `GemelEmbedding`, and `GemelVectorStore` over an index. Needs the package llama-index-core."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gemel.errors import InputError, MissingExtra
from gemel.index.index import Index
from gemel.index.port import FieldValue
from gemel.integrations.framework import DEFAULT_MODEL, QueryDocumentEncoder, metadata_of, store_fields
from gemel.model import Model
from gemel.options import EncodeOptions

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.schema import BaseNode, MetadataMode, TextNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterOperator,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "llama_index":
        raise
    raise MissingExtra("gemel.integrations.llama_index", "llama-index-core", "llama-index") from error


__all__ = ["GemelEmbedding", "GemelVectorStore"]

_BATCH = 256  # texts per call; gemel makes its own batches, so fewer are only slower

_OPTIONS = {field.name for field in fields(EncodeOptions)}


class GemelEmbedding(BaseEmbedding):  # type: ignore[misc]
    """LlamaIndex's BaseEmbedding with a gemel model: queries and texts with their prompts of the checkpoint.

    `settings` are fields of `gemel.EncodeOptions` or of LlamaIndex's class. `to_dict` writes a loaded model as its
    folder; `from_dict` loads it again.
    """

    options: dict[str, Any] = Field(default_factory=dict, description="Fields of gemel.EncodeOptions.")
    _encoder: QueryDocumentEncoder | None = PrivateAttr(default=None)

    def __init__(
        self,
        model_name: Model | str | Path = DEFAULT_MODEL,
        *,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        own = {name: settings.pop(name) for name in _OPTIONS & settings.keys()}
        encoder = QueryDocumentEncoder(model_name, {**(options or {}), **own})
        super().__init__(
            **{"model_name": encoder.name, "options": encoder.options, "embed_batch_size": _BATCH, **settings}
        )
        self._encoder = encoder

    @classmethod
    def class_name(cls) -> str:
        """The name in what LlamaIndex writes."""
        return "GemelEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._ready().queries([query])[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._ready().documents([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._ready().documents(texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def _ready(self) -> QueryDocumentEncoder:
        """Created again after a copy or a pickle, which do not have it."""
        if self._encoder is None:
            self._encoder = QueryDocumentEncoder(self.model_name, self.options)
        return self._encoder


_NODE, _KIND, _SOURCE = "_node_content", "_node_type", "ref_doc_id"  # the names in LlamaIndex

_EVERY = {"not": {"id": None}}  # true for all documents


class GemelVectorStore(BasePydanticVectorStore):  # type: ignore[misc]
    """LlamaIndex's vector store with a gemel index: search by vector or hybrid (`vector_store_query_mode="hybrid"`).

    fields: metadata to filter by. None: all that is a text, a number or a bool.
    LlamaIndex encodes. An index with a model refuses vectors of another one; `open_index(location, dim=n)` takes any.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _index: Index = PrivateAttr()
    _fields: Collection[str] | None = PrivateAttr(default=None)
    _checked: bool = PrivateAttr(default=False)

    def __init__(self, index: Index, *, fields: Collection[str] | None = None) -> None:
        super().__init__()
        self._index, self._fields = index, fields

    @classmethod
    def class_name(cls) -> str:
        """The name in what LlamaIndex writes."""
        return "GemelVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._index

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Add nodes and return their ids; a node with an existing id is replaced."""
        if not nodes:
            return []
        self._check_vectors(nodes[0])
        only = None if self._fields is None else {*self._fields, _NODE, _KIND, _SOURCE}
        kept = [{**each.metadata, **_own_fields(each)} for each in nodes]
        rows = store_fields(self._index, kept, only, rest=False)
        self._index.upsert(
            [each.get_content(metadata_mode=MetadataMode.NONE) for each in nodes],
            ids=[each.node_id for each in nodes],
            vectors=[each.get_embedding() for each in nodes],
            fields=rows,
        )
        return [each.node_id for each in nodes]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete all nodes of a document."""
        if _SOURCE in self._index.fields:
            self._index.delete(where={_SOURCE: ref_doc_id})

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        """Delete nodes with these ids that match the filters; one of the two may be left out."""
        if node_ids == []:
            return
        where = all_of(_ids(node_ids), condition_of(filters))
        if where is None:
            raise InputError(
                "delete_nodes takes node_ids, filters or both; got neither. Use clear to delete all"
            )
        self._index.delete(where=where)

    def clear(self) -> None:
        """Delete all nodes."""
        self._index.delete(where=_EVERY)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The nodes of these ids, in order; unknown ids are left out."""
        if node_ids is None or filters is not None:
            raise InputError("get_nodes of an index takes node_ids and no filters. To filter, use a query")
        return [_node(each.id, each.text, each.fields) for each in self._index.get(node_ids)]

    def query(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        """The best nodes with their scores, best first."""
        hybrid = query.mode == VectorStoreQueryMode.HYBRID
        if not hybrid and query.mode != VectorStoreQueryMode.DEFAULT:
            raise InputError(
                f"an index supports the modes default and hybrid, not {VectorStoreQueryMode(query.mode).value!r}"
            )
        text_or_vector = query.query_str if hybrid else query.query_embedding
        if text_or_vector is None:
            raise InputError(f"the query has no {'text' if hybrid else 'vector'} to search by")
        sources = {_SOURCE: list(query.doc_ids)} if query.doc_ids else None
        hits = self._index.search(
            text_or_vector,
            (query.hybrid_top_k if hybrid else None) or query.similarity_top_k,
            where=all_of(condition_of(query.filters), _ids(query.node_ids), sources),
            hybrid=hybrid,
        )
        return VectorStoreQueryResult(
            nodes=[_node(hit.id, hit.text, hit.fields) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )

    async def async_add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        return await asyncio.to_thread(self.add, nodes)

    async def adelete(self, ref_doc_id: str, **_: Any) -> None:
        await asyncio.to_thread(self.delete, ref_doc_id)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    async def aclear(self) -> None:
        await asyncio.to_thread(self.clear)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    async def aquery(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        return await asyncio.to_thread(self.query, query)

    def _check_vectors(self, node: BaseNode) -> None:
        """On the first node only: the model of LlamaIndex may be another than that of the index."""
        text = node.get_content(metadata_mode=MetadataMode.EMBED)
        if not self._checked and not self._index.made_by_model(text, node.get_embedding()):
            raise InputError(
                f"the vectors are not those of the model of {self._index!r}. Set embed_model to a GemelEmbedding "
                "of that model, or store them in an index of vectors only: open_index(location, dim=...)"
            )
        self._checked = True


def _own_fields(node: BaseNode) -> dict[str, FieldValue]:
    """The fields from which LlamaIndex creates the node again, without its text, and the id of its document."""
    written = node_to_metadata_dict(node, remove_text=True)
    return {name: written[name] for name in (_NODE, _KIND, _SOURCE)}


def _node(id_: str, text: str, fields: Mapping[str, FieldValue]) -> BaseNode:
    """The node that was added; of other documents of the index, a node with the fields as metadata."""
    if fields.get(_NODE) is None:
        return TextNode(id_=id_, text=text, metadata=metadata_of(fields))
    return metadata_dict_to_node(dict(fields), text=text)


def _ids(ids: Sequence[str] | None) -> dict[str, Any] | None:
    """None for no ids: retrievers of LlamaIndex pass [] for any id."""
    return {"id": list(ids)} if ids else None


_OPERATORS = {
    FilterOperator.EQ: "=",
    FilterOperator.NE: "!=",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "not in",
}


def condition_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """The filters as `where` of `Index.search`; None for no filters."""
    if filters is None or not filters.filters:
        return None
    parts = [part for part in (_part(each) for each in filters.filters) if part is not None]
    operator = str(getattr(filters.condition, "value", filters.condition) or "and")
    if not parts:
        return None
    return {"not": {"or": parts}} if operator == "not" else {operator: parts}


def all_of(*conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """The conjunction of the conditions that are not None."""
    given = [each for each in conditions if each is not None]
    return {"and": given} if given else None


def _part(given: Any) -> dict[str, Any] | None:  # noqa: ANN401 - MetadataFilter or MetadataFilters
    if isinstance(given, MetadataFilters):
        return condition_of(given)
    if given.operator == FilterOperator.IS_EMPTY:
        return {given.key: None}
    if given.operator not in _OPERATORS:
        supported = ", ".join(operator.value for operator in (*_OPERATORS, FilterOperator.IS_EMPTY))
        raise InputError(
            f"an index cannot filter {given.key!r} by {given.operator.value!r}. It supports: {supported}"
        )
    return {given.key: {_OPERATORS[given.operator]: given.value}}

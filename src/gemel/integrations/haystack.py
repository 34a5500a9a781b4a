"""gemel in Haystack: `GemelTextEmbedder` and `GemelDocumentEmbedder`. Needs the package haystack-ai."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from gemel.errors import InputError, MissingExtra
from gemel.files.machine import disable_usage_reports
from gemel.integrations.framework import DEFAULT_MODEL, QueryDocumentEncoder
from gemel.model import Model

disable_usage_reports("haystack")  # without effect if the program has imported haystack before

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "haystack":
        raise
    raise MissingExtra("gemel.integrations.haystack", "haystack-ai", "haystack") from error


__all__ = ["GemelDocumentEmbedder", "GemelTextEmbedder"]


class _Embedder:
    """What both components share."""

    _encoder: QueryDocumentEncoder

    def warm_up(self) -> None:
        """Load the model, which otherwise happens in the first `run`."""
        self._encoder.model()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component of a `to_dict`."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]


@component
class GemelTextEmbedder(_Embedder):
    """A component that encodes a query with its prompt. `options` are fields of `gemel.EncodeOptions`."""

    def __init__(self, model: Model | str | Path = DEFAULT_MODEL, **options: Any) -> None:
        self._encoder = QueryDocumentEncoder(model, options)

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, Any]:
        """{"embedding": the vector}"""
        if not isinstance(text, str):
            raise InputError(
                f"GemelTextEmbedder takes one text, got a {type(text).__name__}. "
                "For documents use GemelDocumentEmbedder"
            )
        return {"embedding": self._encoder.queries([text])[0]}

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    async def run_async(self, text: str) -> dict[str, Any]:
        """`run` in a thread."""
        return await asyncio.to_thread(self.run, text)

    def to_dict(self) -> dict[str, Any]:
        """The arguments, for `from_dict`. A loaded model is written as its folder."""
        return dict(default_to_dict(self, model=self._encoder.name, **self._encoder.options))


@component
class GemelDocumentEmbedder(_Embedder):
    """A component that adds vectors to documents, with the document prompt.

    meta_fields_to_embed: metadata that is put in front of the text, separated by `embedding_separator`.
    `options` are fields of `gemel.EncodeOptions`.
    """

    def __init__(
        self,
        model: Model | str | Path = DEFAULT_MODEL,
        *,
        meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n",
        **options: Any,
    ) -> None:
        self._encoder = QueryDocumentEncoder(model, options)
        self.meta_fields_to_embed = list(meta_fields_to_embed)
        self.embedding_separator = embedding_separator

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """{"documents": copies with `embedding` set, in order}"""
        if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
            raise InputError(
                "GemelDocumentEmbedder takes a list of Documents. For a text use GemelTextEmbedder"
            )
        vectors = self._encoder.documents([self._text(each) for each in documents])
        return {
            "documents": [
                replace(each, embedding=vector) for each, vector in zip(documents, vectors, strict=True)
            ]
        }

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """`run` in a thread."""
        return await asyncio.to_thread(self.run, documents)

    def to_dict(self) -> dict[str, Any]:
        """The arguments, for `from_dict`. A loaded model is written as its folder."""
        return dict(
            default_to_dict(
                self,
                model=self._encoder.name,
                meta_fields_to_embed=self.meta_fields_to_embed,
                embedding_separator=self.embedding_separator,
                **self._encoder.options,
            )
        )

    def _text(self, document: Document) -> str:
        values = [document.meta.get(name) for name in self.meta_fields_to_embed]
        metadata = [str(value) for value in values if value is not None and value != ""]
        return self.embedding_separator.join([*metadata, document.content or ""])

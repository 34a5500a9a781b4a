"""`GemelEmbedding`: a model as LlamaIndex's BaseEmbedding."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from gemel.integrations.sides import DEFAULT_MODEL, Sides
from gemel.model import Model
from gemel.options import EncodeOptions

_BATCH = 256  # texts a call; gemel makes batches of its own, so fewer only cost time
_OPTIONS = {field.name for field in fields(EncodeOptions)}


class GemelEmbedding(BaseEmbedding):  # type: ignore[misc]
    """Vectors by a gemel model: queries with the checkpoint's query prompt, texts with its document prompt.

    `settings` are fields of `gemel.EncodeOptions` or of LlamaIndex's class. `to_dict` writes a model that was given
    loaded as its folder; `from_dict` loads it again.
    """

    options: dict[str, Any] = Field(default_factory=dict, description="Fields of gemel.EncodeOptions.")
    _sides: Sides | None = PrivateAttr(default=None)

    def __init__(
        self,
        model_name: Model | str | Path = DEFAULT_MODEL,
        *,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        own = {name: settings.pop(name) for name in _OPTIONS & settings.keys()}
        sides = Sides(model_name, {**(options or {}), **own})
        super().__init__(
            **{"model_name": sides.name, "options": sides.options, "embed_batch_size": _BATCH, **settings}
        )
        self._sides = sides

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls it in what it writes."""
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

    def _ready(self) -> Sides:
        """Made anew where a copy or a pickle of this object has lost it."""
        if self._sides is None:
            self._sides = Sides(self.model_name, self.options)
        return self._sides

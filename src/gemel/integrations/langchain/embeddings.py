"""`GemelEmbeddings`: a model as LangChain's Embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from gemel.integrations.sides import DEFAULT_MODEL, Sides
from gemel.model import Model


class GemelEmbeddings(Embeddings):  # type: ignore[misc]
    """Vectors by a gemel model: queries with the checkpoint's query prompt, documents with its document prompt.

    `options` are fields of `gemel.EncodeOptions`: `GemelEmbeddings("all-MiniLM-L6-v2", dim=128)`. The async calls run
    in a thread; the model computes without holding the interpreter.
    """

    def __init__(self, model: Model | str | Path = DEFAULT_MODEL, **options: Any) -> None:
        self._sides = Sides(model, options)

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

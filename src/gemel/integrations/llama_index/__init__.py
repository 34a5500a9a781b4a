"""gemel in LlamaIndex: `GemelEmbedding`, and `GemelVectorStore` over an index. Needs the package llama-index-core."""

from __future__ import annotations

from gemel.errors import MissingExtra

try:
    from gemel.integrations.llama_index.embedding import GemelEmbedding as GemelEmbedding
    from gemel.integrations.llama_index.vector_store import GemelVectorStore as GemelVectorStore
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "llama_index":
        raise
    raise MissingExtra("gemel.integrations.llama_index", "llama-index-core", "llama-index") from error

__all__ = ["GemelEmbedding", "GemelVectorStore"]

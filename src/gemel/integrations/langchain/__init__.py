"""gemel in LangChain: `GemelEmbeddings`, and `GemelVectorStore` over an index. Needs the package langchain-core."""

from __future__ import annotations

from gemel.errors import MissingExtra

try:
    from gemel.integrations.langchain.embeddings import GemelEmbeddings as GemelEmbeddings
    from gemel.integrations.langchain.vector_store import GemelVectorStore as GemelVectorStore
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "langchain_core":
        raise
    raise MissingExtra("gemel.integrations.langchain", "langchain-core", "langchain") from error

__all__ = ["GemelEmbeddings", "GemelVectorStore"]

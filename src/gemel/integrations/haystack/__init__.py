"""gemel in Haystack: `GemelTextEmbedder` and `GemelDocumentEmbedder`. Needs the package haystack-ai."""

from __future__ import annotations

from gemel.errors import MissingExtra
from gemel.network_use import disable_usage_reports

disable_usage_reports("haystack")  # a program that imports haystack first decides for itself

try:
    from gemel.integrations.haystack.document_embedder import GemelDocumentEmbedder as GemelDocumentEmbedder
    from gemel.integrations.haystack.text_embedder import GemelTextEmbedder as GemelTextEmbedder
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "haystack":
        raise
    raise MissingExtra("gemel.integrations.haystack", "haystack-ai", "haystack") from error

__all__ = ["GemelDocumentEmbedder", "GemelTextEmbedder"]

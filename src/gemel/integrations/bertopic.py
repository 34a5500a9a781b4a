"""A gemel model as the embedding backend of BERTopic: topics without torch.

    BERTopic(embedding_model=GemelBackend(gemel.load("all-MiniLM-L6-v2"))).fit_transform(texts)

BERTopic requires a subclass of its own class, so this module cannot be imported without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemel.errors import MissingExtra
from gemel.integrations.framework import encoder_of
from gemel.model import Model
from gemel.types import Encoder, Vectors

try:
    from bertopic.backend import BaseEmbedder  # type: ignore[import-not-found, unused-ignore]
except ImportError as error:
    raise MissingExtra("gemel.integrations.bertopic", "bertopic", "bertopic") from error


class GemelBackend(BaseEmbedder):  # type: ignore[misc, unused-ignore]
    """An embedding backend for `BERTopic(embedding_model=...)`. `changes` are fields of EncodeOptions."""

    def __init__(self, model: Encoder, **changes: Any) -> None:
        super().__init__()
        encoder_of(model, changes)  # raises here rather than in `embed`
        self.embedding_model = model
        self.changes = changes

    def embed(self, documents: Sequence[str], verbose: bool = False) -> Vectors:
        """(n, dim) vectors of documents or words; `verbose` shows the progress."""
        shown = {"progress": True} if verbose and isinstance(self.embedding_model, Model) else {}
        vectors = encoder_of(self.embedding_model, {**self.changes, **shown}).encode(list(documents))
        return np.asarray(vectors, dtype=np.float32)

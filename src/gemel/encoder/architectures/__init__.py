"""Checkpoints to networks: one file per architecture, and only the file that is needed is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from gemel.encoder.architectures.table import ARCHITECTURES, Config
from gemel.encoder.network import Array, Network
from gemel.errors import ModelError

FILES = {
    "albert": "albert",
    "bert": "bert",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "electra": "electra",
    "modernbert": "modernbert",
    "mpnet": "mpnet",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
}
"""HF `model_type` to the module of this package that reads it."""


def is_known(config: Config) -> bool:
    """Whether `read_network` has a file for this config; if not, the torch engine may still run it."""
    return config.get("model_type") in FILES


def read_network(config: Config, weights: Mapping[str, Array]) -> Network:
    """The network of a checkpoint: its config.json and its weights by name, with any prefix on the names."""
    kind = config.get("model_type")
    if kind not in FILES:
        raise ModelError(
            f"unknown architecture {kind!r} (model_type in config.json). Known: {', '.join(FILES)}"
        )
    import_module(f"{__name__}.{FILES[kind]}")
    return ARCHITECTURES[kind](config, weights)

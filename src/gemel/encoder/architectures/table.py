"""Checkpoints to networks: one file per architecture, and only the file that is needed is imported.

The table that the architecture files fill: HF `model_type` to the function that makes a Network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias

from gemel.checkpoint.tensors import Tensors
from gemel.encoder.network import Array, Network
from gemel.encoder.weights import check_sizes, refuse_unexpected, unexpected_in_body
from gemel.errors import ModelError
from gemel.registry import Registry

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
    """The network of a checkpoint: its config.json and its weights by name, with any prefix on the names.

    Weights inside the network that this config.json does not use are refused: they belong to another one.
    """
    kind = config.get("model_type")
    if kind not in FILES:
        raise ModelError(
            f"unknown architecture {kind!r} (model_type in config.json). Known: {', '.join(FILES)}"
        )
    import_module(f"gemel.encoder.architectures.{FILES[kind]}")
    where = f"a model of the architecture {kind!r}"
    check_sizes(config, (_shape(weights, name) for name in weights), where)
    read = _Read(weights)
    network = ARCHITECTURES[kind](config, read)
    refuse_unexpected(unexpected_in_body(read.names, weights), where)
    return network


class _Read(Mapping[str, Array]):
    """Weights that remember which of them were read."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = weights
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        weight = self._weights[name]
        self.names.add(name)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights  # Mapping's own would read the weight


def _shape(weights: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """Without a look at the numbers, where the weights can say it."""
    return weights.shape(name) if isinstance(weights, Tensors) else weights[name].shape


Config: TypeAlias = Mapping[str, Any]  # config.json as it is: any JSON value

Reader: TypeAlias = Callable[[Config, Mapping[str, Array]], Network]

ARCHITECTURES: Registry[Reader] = Registry("architecture")

"""Values of config.json, checked; a setting that would silently give wrong vectors is refused."""

from __future__ import annotations

from gemel.checkpoint.architecture import Config
from gemel.encoder.network import Activation
from gemel.errors import ModelError

MOST_LAYERS = 1000

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def unsupported(message: str) -> ModelError:
    """An error for a variant of a known architecture that only transformers runs."""
    return ModelError(f"{message}. It may run with engine='torch' (pip install 'gemel[train]')")


def positive(config: Config, name: str, default: int | None = None) -> int:
    """A size: a whole number of at least 1."""
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        rule = f"config.json must give {name!r} as a whole number of at least 1 and at most {LARGEST:,}"
        raise ModelError(f"{rule}, got {value!r:.60}")
    return value


def layers_of(config: Config, name: str = "num_hidden_layers", default: int | None = None) -> int:
    """A number of layers, of groups or of layers in a group: bounded here, because shared weights do not bound it."""
    layers = positive(config, name, default)
    if layers > MOST_LAYERS:
        raise ModelError(f"config.json asks for {layers:,} as {name!r}, at most {MOST_LAYERS:,} are run")
    return layers


def epsilon_of(config: Config, name: str = "layer_norm_eps", default: float = 1e-12) -> float:
    """The epsilon of a layer norm."""
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ModelError(f"config.json must give {name!r} as a number from 0 to 1, got {value!r}")
    return float(value)


def heads_of(config: Config, width: int, name: str = "num_attention_heads") -> int:
    """The number of attention heads, which must divide the width."""
    heads = positive(config, name)
    if width % heads:
        raise ModelError(
            f"config.json asks for {heads} attention heads, which do not divide the width {width}"
        )
    return heads


LARGEST = 2**20
"""Far above any size of a real model; tables of these sizes are allocated before weights are compared."""


def token_id(config: Config, name: str) -> int | None:
    """The id of a token; None where the config gives none."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ModelError(f"config.json must give {name!r} as the number of a token, got {value!r:.60}")
    return value


def activation_of(config: Config, name: str = "hidden_act", default: str = "gelu") -> Activation:
    """The activation between the two feed-forward layers."""
    named = config.get(name, default)
    if not isinstance(named, str) or named not in _ACTIVATIONS:
        raise unsupported(
            f"unknown activation {named!r} in config.json. Known: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[named]


def refuse_variants(config: Config) -> None:
    """Refuse decoders (a token sees only those before it) and relative positions, which are other networks."""
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ModelError(
            f"config.json asks for position_embedding_type {positions!r}, only 'absolute' is known"
        )
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name):
            raise unsupported(f"config.json sets {name}: that is a decoder, only encoders are read")

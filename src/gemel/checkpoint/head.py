"""What stands after the token vectors in a checkpoint: pooling and dense layers, read from their folders.

What writes a config stands next to what reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint import known_keys
from gemel.checkpoint.json_file import read_object
from gemel.checkpoint.weights import module_weights
from gemel.errors import ModelError

# In the order in which their results are joined when a config switches on several of them.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt-len",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Pooling:
    """How token vectors become one vector."""

    modes: tuple[str, ...] = ("mean",)
    """Of cls, mean, max, mean-sqrt-len, weighted-mean, last; the results are joined in this order."""
    include_prompt: bool = True
    """False: tokens of the prompt do not count."""


@dataclass(frozen=True, eq=False)
class Dense:
    """x -> activation(x @ weight.T + bias) on the pooled vector."""

    weight: NDArray[np.float32]
    """(out, in)"""
    bias: NDArray[np.float32] | None
    activation: str
    """identity, tanh, relu, gelu or sigmoid"""


def read_pooling(folder: Path) -> Pooling:
    """The pooling of a config with one flag per mode (older) or with the modes by name (newer)."""
    config = read_object(folder / "config.json")
    known_keys.refuse_unknown(folder / "config.json", config, known_keys.POOLING)
    named = config.get("pooling_mode")
    if named is None:
        modes = tuple(mode for flag, mode in _FLAGS.items() if config.get(flag) is True) or ("mean",)
    else:
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not names or not all(str(name) in _NAMES for name in names):
            raise ModelError(f"{folder}: unknown pooling {named!r}. Known: {', '.join(_NAMES)}")
        modes = tuple(_NAMES[name] for name in names)
    return Pooling(modes, config.get("include_prompt") is not False)


def pooling_config(pooling: Pooling, width: int) -> dict[str, Any]:
    """What `read_pooling` reads: flags, which every release of sentence-transformers knows, where they can say it."""
    flags = {flag: mode in pooling.modes for flag, mode in _FLAGS.items()}
    if tuple(mode for mode in _FLAGS.values() if mode in pooling.modes) == pooling.modes:
        return {"word_embedding_dimension": width, **flags, "include_prompt": pooling.include_prompt}
    names = {mode: name for name, mode in _NAMES.items()}
    modes = [names[mode] for mode in pooling.modes]
    return {"embedding_dimension": width, "pooling_mode": modes, "include_prompt": pooling.include_prompt}


def dense_config(dense: Dense) -> dict[str, Any]:
    """What `read_dense` and sentence-transformers read."""
    word = next(word for word, name in _ACTIVATIONS.items() if name == dense.activation)
    home = "linear" if word == "Identity" else "activation"
    return {
        "in_features": dense.weight.shape[1],
        "out_features": dense.weight.shape[0],
        "bias": dense.bias is not None,
        "activation_function": f"torch.nn.modules.{home}.{word}",
    }


def read_dense(model: Path, folder: Path) -> Dense:
    """The layer in `folder`, a sub-folder of `model`."""
    config = read_object(folder / "config.json")
    known_keys.refuse_unknown(folder / "config.json", config, known_keys.DENSE)
    _check_plain_dense(folder, config)
    weights = module_weights(model, folder)
    if "linear.weight" not in weights:
        raise ModelError(
            f"{folder}: a dense layer needs the tensor 'linear.weight', found {', '.join(weights)}"
        )
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shape = None if bias is None else bias.shape
        raise ModelError(f"{folder}: a weight of shape {weight.shape} and a bias of shape {shape} do not fit")
    return Dense(weight, bias, _activation(folder, config))


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    named = config.get("activation_function", "Tanh")  # sentence-transformers' default
    word = str(named).rpartition(".")[2]
    if word not in _ACTIVATIONS:
        raise ModelError(f"{folder}: unknown activation {named!r}. Known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[word]


def _check_plain_dense(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("use_residual"):
        raise ModelError(f"{folder}: a dense layer with a residual connection is not supported")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise ModelError(
                f"{folder}: a dense layer on {config[key]!r} is not supported, only on the pooled vector"
            )

"""config.json and the weights of a checkpoint to a `Network`: what all architectures read them with.

Sizes of config.json are checked before anything is allocated, and a setting that would silently give wrong vectors is
refused. A missing weight would be random, one too many belongs to another network: both are refused by name.
Checkpoints saved from a larger model put a prefix on every name ("bert.", "model.", "0.auto_model."); it is detected
by looking for the word table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gemel.checkpoint.architecture import Config, architecture_of, model_types, native_config
from gemel.checkpoint.files import Tensors, is_finite
from gemel.encoder.network import Activation, Array, Block, Linear, Network, Norm
from gemel.errors import ModelError

MAX_LAYERS = 256
"""Shared weights (ALBERT) do not bound the number of layers. torch runs more, where as many tensors are stored."""

MAX_SIZE = 2**26
"""Of a size that config.json gives. torch runs more, where a tensor of the checkpoint is that large."""

MAX_POSITIONS = 2**18
"""Of rotary positions: no table of weights bounds them, and each takes a row of angles."""

_HARMLESS = re.compile(r"(^|\.)(pooler\..*|position_ids|token_type_ids|(.*_)?inv_freq|masked_bias)$")

# Heads for pretraining and classification, which the encoder does not run.
_HEADS = re.compile(
    r"^((bert|roberta|electra|model|transformer)\.)?"
    r"(cls|lm_head|lm_predictions|mlm_head|predictions|generator\w*|discriminator\w*|sop_classifier|seq_relationship"
    r"|classifier|pre_classifier|qa_outputs|score|head|decoder|vocab_\w+|mask_predictions|pooler|sequence_summary"
    r"|pred_layer|logits_proj)\."
)

_SHOWN = 3

_LAYERS = re.compile(r"layers?$|num_hidden_groups$|inner_group_num$")

_SIZES = re.compile(r"size|dim|positions?|embeddings|heads|embd|experts|buckets|vocab|^d_")


def read_network(config: Config, weights: Mapping[str, Array]) -> Network:
    """The network of a checkpoint: its config.json and its weights by name, with any prefix on the names.

    Weights inside the network that this config.json does not use are refused: they belong to another one.
    """
    config = native_config(config)
    kind = config.get("model_type")
    architecture = architecture_of(config)
    if architecture is None:
        raise ModelError(
            f"unknown architecture {kind!r} (model_type in config.json). Known: {', '.join(model_types())}"
        )
    where = f"a model of the architecture {kind!r}"
    check_sizes(config, (shape_of(weights, name) for name in weights), where)
    weights = architecture.adapt(config, weights)
    reader = CheckpointWeights(weights, architecture.word_table)
    network: Network = architecture.read(config, reader)
    refuse_unexpected(unexpected_in_body(reader.used, weights), where)
    return network


def shape_of(weights: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """The shape of a weight, without reading its numbers where that is possible."""
    shape: Callable[[str], tuple[int, ...]] | None = getattr(weights, "shape", None)
    return weights[name].shape if shape is None else shape(name)


def is_harmless(name: str) -> bool:
    """True for a weight on which no hidden state depends: a pooler, or a buffer that is computed anyway."""
    return _HARMLESS.search(name) is not None


def is_head(name: str) -> bool:
    """True for a weight of a head after the network, which is not run."""
    return _HEADS.search(name) is not None


def check_sizes(config: Mapping[str, Any], shapes: Iterable[tuple[int, ...]], where: str) -> None:
    """Refuse a config.json that asks for far more than its weights can hold."""
    listed = list(shapes)
    layers = max(MAX_LAYERS, len(listed))
    largest = max(MAX_SIZE, *(prod(shape) for shape in listed), 0)
    for key, value in _numbers(config):
        most = layers if _LAYERS.search(key) else largest
        if value > most and (most == layers or _SIZES.search(key)):
            raise ModelError(
                f"{where}: config.json gives {key} as {value:,}, but the checkpoint has only {len(listed):,} tensors "
                f"and {sum(map(prod, listed)):,} numbers. One of the two files is damaged or of another model"
            )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Whole numbers of a config by their names, also those of configs inside it."""
    for key, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield str(key), value
        elif isinstance(value, Mapping) and str(key).endswith("config"):
            yield from _numbers(value)


def unexpected_in_body(used: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Stored weights inside the network that it did not use; heads, poolers and buffers do not count."""
    taken = set(used)
    start = _common_prefix(taken)
    roots = tuple({f"{start}{name[len(start) :].partition('.')[0]}." for name in taken})
    return sorted(
        name for name in stored if name not in taken and name.startswith(roots) and not is_harmless(name)
    )


def _common_prefix(names: set[str]) -> str:
    """The prefix that all names share, with its last dot."""
    low, high = min(names).split("."), max(names).split(".")
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), 0)
    return "".join(f"{part}." for part in low[:same])


def refuse_unexpected(names: list[str], where: str) -> None:
    """Raise an error with the first of these names, if there are any."""
    if names:
        raise ModelError(
            f"{where}: the checkpoint holds {listing(names)}, which the network of its config.json does not have. "
            "config.json belongs to another model, or the weights were saved from a changed one"
        )


def refuse_missing(names: list[str], where: str) -> None:
    """Raise an error with the first of these names, if there are any."""
    if names:
        raise ModelError(
            f"{where}: the weights {listing(names)} are missing from the checkpoint. The file is incomplete, or "
            "config.json belongs to another model; without them every load would give other vectors"
        )


def listing(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


# Values of config.json, checked.

_ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu-tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
}


def unsupported(message: str) -> ModelError:
    """An error for a variant of a known architecture that only transformers runs."""
    return ModelError(f"{message}. It may run with engine='torch' (pip install 'gemel[train]')")


def positive(config: Config, name: str, default: int | None = None, *, most: int = MAX_SIZE) -> int:
    """A size: a whole number from 1 to `most`."""
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        rule = f"config.json must give {name!r} as a whole number of at least 1 and at most {most:,}"
        raise ModelError(f"{rule}, got {value!r:.60}")
    return value


def layers_of(config: Config, name: str = "num_hidden_layers", default: int | None = None) -> int:
    """A number of layers, of groups or of layers in a group."""
    return positive(config, name, default, most=MAX_LAYERS)


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


def token_id(config: Config, name: str) -> int | None:
    """The id of a token; None where the config gives none."""
    value = config.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
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


# The names of the two parts of a norm in checkpoints converted from the first BERT release.
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}


@dataclass(frozen=True)
class BlockNames:
    """Names of the weights of a block, after the name of the block itself."""

    qkv: tuple[str, str, str]
    out: str
    attention_norm: str
    up: str
    down: str
    ffn_norm: str


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """The rows of several weights, one after the other: a `StoredArray` of `network.py`."""

    weights: Mapping[str, Array]
    names: tuple[str, ...]
    shape: tuple[int, ...]

    def __array__(self, dtype: None = None, copy: None = None) -> Array:
        parts = [self._read(name) for name in self.names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, name: str) -> Array:
        """A copy that nobody else keeps, where the weight is in a file."""
        weights = self.weights
        stored = weights.read(name) if isinstance(weights, Tensors) else weights[name]
        return _finite(np.asarray(stored, dtype=np.float32), name)


def _finite(array: Array, name: str) -> Array:
    """The weight; attention can hide a NaN from everything that comes after it, so it is looked for here."""
    if not is_finite(array):
        raise ModelError(f"the weight {name!r} holds NaN or infinite values. Fetch or save the model again")
    return array


class CheckpointWeights:
    """Arrays of a checkpoint by their role; every error names the weight."""

    def __init__(self, weights: Mapping[str, Array], word: str) -> None:
        """`word`: the name of a weight that every such checkpoint has, to find the prefix of all names."""
        self._weights = weights
        self._prefix = _find_prefix(weights, word)
        self._word = word
        self.used: set[str] = set()
        """Names of the weights that the network has, as they are in the checkpoint."""

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def ignore(self, name: str) -> None:
        """A weight that checkpoints may hold and that the network does not use."""
        if name in self:
            self.used.add(self._prefix + name)

    def word(self, width: int) -> Array:
        """The token table, not copied; as many rows as it has."""
        rows = next(iter(self._shape(self._word)), 0)
        self._check_shape(self._word, (rows, width))
        if not rows:
            raise ModelError(f"the weight {self._prefix + self._word!r} has no rows: the vocabulary is empty")
        # Not checked for NaN: it is the largest weight, and a bad row shows in its vectors.
        return np.asarray(self._weights[self._prefix + self._word], dtype=np.float32)

    def array(self, name: str, *shape: int) -> Array:
        """The weight as float32 and in exactly this shape; no copy when it is float32 already."""
        self._check_shape(name, shape)
        stored = self._prefix + name
        return _finite(np.asarray(self._weights[stored], dtype=np.float32), stored)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        """`name`.weight (outputs, inputs), with `name`.bias where the architecture has one."""
        return self.stacked([name], [outputs], inputs, bias=bias)

    def stacked(
        self, names: Sequence[str], outputs: Sequence[int], inputs: int, *, bias: bool = True
    ) -> Linear:
        """Several linear layers over the same input as one: the rows of the first, then of the second, ..."""
        for name, rows in zip(names, outputs, strict=True):
            self._check_shape(f"{name}.weight", (rows, inputs))
        stored = tuple(f"{self._prefix}{name}.weight" for name in names)
        weight = _StoredRows(self._weights, stored, (sum(outputs), inputs))
        if not bias:
            return Linear(weight)
        biases = [self.array(f"{name}.bias", rows) for name, rows in zip(names, outputs, strict=True)]
        return Linear(weight, np.concatenate(biases))

    def norm(self, name: str, width: int, epsilon: float, *, bias: bool = True, rms: bool = False) -> Norm:
        """A layer norm, or an RMS norm; also found under its old names gamma and beta."""

        def part(which: str) -> Array:
            old = f"{name}.{_OLD_NAMES[which]}"
            return self.array(old if old in self else f"{name}.{which}", width)

        return Norm(part("weight"), part("bias") if bias and not rms else None, float(epsilon), rms)

    def block(self, at: str, names: BlockNames, width: int, inner: int, epsilon: float) -> Block:
        """The block `at`: its linear layers with biases, the three of the attention as one, and both norms."""
        return Block(
            qkv=self.stacked([f"{at}.{name}" for name in names.qkv], [width] * 3, width),
            out=self.linear(f"{at}.{names.out}", width, width),
            attention_norm=self.norm(f"{at}.{names.attention_norm}", width, epsilon),
            up=self.linear(f"{at}.{names.up}", inner, width),
            down=self.linear(f"{at}.{names.down}", width, inner),
            ffn_norm=self.norm(f"{at}.{names.ffn_norm}", width, epsilon),
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight, which the network has."""
        stored = self._prefix + name
        if stored not in self._weights:
            raise ModelError(
                f"the weight {stored!r} is missing from the checkpoint. "
                "The file is incomplete, or config.json belongs to another model",
                code="GEM-207",
            )
        self.used.add(stored)
        return shape_of(self._weights, stored)

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        shape = self._shape(name)
        if shape != expected:
            raise ModelError(
                f"the weight {self._prefix + name!r} has shape {shape}, config.json asks for {expected}. "
                "One of the two files belongs to another model",
                code="GEM-207",
            )


def _find_prefix(weights: Mapping[str, Array], word: str) -> str:
    prefixes = [name.removesuffix(word) for name in weights if name == word or name.endswith("." + word)]
    if not prefixes:
        raise ModelError(
            f"the weight {word!r} is missing from the checkpoint, with any prefix. "
            "config.json belongs to another model, or the weights hold no encoder",
            code="GEM-207",
        )
    if len(prefixes) > 1:
        raise ModelError(
            f"the checkpoint holds {len(prefixes)} encoders (prefixes {', '.join(map(repr, sorted(prefixes)))}). "
            "Save the one to use on its own"
        )
    return prefixes[0]

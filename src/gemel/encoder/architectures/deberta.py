"""DeBERTa (arXiv 2006.03654) and DeBERTa v2 and v3 (arXiv 2111.09543): disentangled attention.

A BERT whose attention also compares contents with relative positions. The vectors of the positions are weights, so
their projections are computed once, when the checkpoint is read. Version 1 stores its attention in another layout.
Version 2 xlarge has a convolution beside its first block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout, key_set
from gemel.encoder.architectures.bert import CONFIG_KEYS
from gemel.encoder.network import Array, Block, Convolution, Linear, Network, Norm, RelativeTables
from gemel.encoder.weights import (
    CheckpointWeights,
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    unsupported,
)
from gemel.errors import ModelError

_KINDS = ("c2p", "p2c")
_HEAD_ACTIVATIONS = ("gelu", "tanh", "relu")


@dataclass(frozen=True, eq=False)
class _Positions:
    """The relative positions of a network."""

    vectors: Array
    """(2 * span, d)"""
    rows: NDArray[np.int32]
    """`Network.relative_rows`"""


def read(config: Config, weights: CheckpointWeights) -> Network:
    """The network of any version; what they differ in is how the attention is stored."""
    _refuse_variants(config)
    width = positive(config, "hidden_size")
    heads, epsilon = heads_of(config, width), epsilon_of(config, default=1e-7)
    relative = _relative_positions(config, weights)
    word, positions = _tables(config, weights)
    first, *others = (
        _block(config, weights, f"encoder.layer.{layer}", relative) for layer in range(layers_of(config))
    )
    return Network(
        word=word,
        positions=positions,
        embedding_norm=weights.norm("embeddings.LayerNorm", width, epsilon),
        projection=None,
        blocks=(replace(first, convolution=_convolution(config, weights)), *others),
        heads=heads,
        activation=activation_of(config),
        max_positions=positive(config, "max_position_embeddings"),
        attention_scale=_scale(config, width // heads),
        relative_rows=None if relative is None else relative.rows,
    )


def _refuse_variants(config: Config) -> None:
    """Steps that the network has no field for."""
    if config.get("talking_head"):
        raise unsupported("config.json sets 'talking_head', which is not followed")
    width = positive(config, "hidden_size")
    head = width // heads_of(config, width)
    if (config.get("attention_head_size") or head) != head:
        raise unsupported(
            f"config.json gives 'attention_head_size' as other than {head}, the width of a head"
        )
    unknown = [kind for kind in _position_kinds(config) if kind not in _KINDS]
    if unknown:
        raise unsupported(f"config.json asks for pos_att_type {unknown[0]!r}. Known: {', '.join(_KINDS)}")


def _position_kinds(config: Config) -> list[str]:
    """Which of the two products with relative positions there are: content to position, position to content."""
    given = config.get("pos_att_type") or []
    if not isinstance(given, str | list) or not all(isinstance(kind, str) for kind in given):
        raise ModelError(f"config.json must give 'pos_att_type' as a list of names, got {given!r:.60}")
    return _words(given) if isinstance(given, str) else given


def _words(text: object) -> list[str]:
    return [word.strip() for word in str(text).lower().split("|")]


def _scale(config: Config, head: int) -> float:
    """Scores are sums of one to three products, and scaled by their number, also without relative attention."""
    products = 1 + len(set(_KINDS) & set(_position_kinds(config)))
    return float(1 / np.sqrt(np.float32(head * products)))


def _tables(config: Config, weights: CheckpointWeights) -> tuple[Array, Array | None]:
    """The word table, and what is added to each position: both projected to the width of the network."""
    width, types = positive(config, "hidden_size"), config.get("type_vocab_size") or 0
    size = positive(config, "embedding_size", width)
    rows = positive(config, "max_position_embeddings")
    word, positions = weights.word(size), None
    stored = "embeddings.position_embeddings.weight"
    if config.get("position_biased_input", True):
        positions = weights.array(stored, rows, size)
    else:
        weights.ignore(stored)
    if types:
        table = weights.array(
            "embeddings.token_type_embeddings.weight", positive(config, "type_vocab_size"), size
        )
        positions = np.add(np.zeros((rows, size), np.float32) if positions is None else positions, table[0])
    if size == width:
        return word, positions
    if types:
        raise unsupported("config.json gives token types to a word table of another 'embedding_size'")
    project = weights.linear("embeddings.embed_proj", width, size, bias=False).read().T
    return word @ project, None if positions is None else positions @ project


def _relative_positions(config: Config, weights: CheckpointWeights) -> _Positions | None:
    if not config.get("relative_attention"):
        return None
    width, positions = positive(config, "hidden_size"), positive(config, "max_position_embeddings")
    farthest = _positive_or(config, "max_relative_positions", positions)
    distances = np.arange(1 - positions, positions)
    buckets = 0 if _is_first(config) else _positive_or(config, "position_buckets", 0)
    span = buckets or farthest
    if buckets:
        distances = bucket_of(distances, buckets, farthest)
    vectors = weights.array("encoder.rel_embeddings.weight", 2 * span, width)
    if not _is_first(config) and "layer_norm" in _words(config.get("norm_rel_ebd") or ""):
        vectors = _normed(vectors, weights.norm("encoder.LayerNorm", width, epsilon_of(config, default=1e-7)))
    return _Positions(vectors, np.clip(distances + span, 0, 2 * span - 1).astype(np.int32))


def _positive_or(config: Config, name: str, default: int) -> int:
    """A size for which 0, negative numbers and nothing stand for the default."""
    value = config.get(name)
    absent = value is None or (isinstance(value, int) and value < 1)
    return default if absent else positive(config, name)


def bucket_of(distances: NDArray[np.int64], buckets: int, farthest: int) -> NDArray[np.int64]:
    """Distances up to half of the buckets as they are, larger ones logarithmically."""
    half = buckets // 2
    away = np.maximum(np.abs(distances), max(half - 1, 1)).astype(np.float32)
    # In float32, as the reference does: on a border between buckets the last bit decides.
    ratio = np.log(away / np.float32(half)) / np.log(np.float32((farthest - 1) / half))
    far = np.ceil(ratio * np.float32(half - 1)) + half
    return np.where(np.abs(distances) <= half, distances, np.sign(distances) * far).astype(np.int64)


def _normed(vectors: Array, norm: Norm) -> Array:
    centered = vectors - vectors.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + np.float32(norm.epsilon))
    assert norm.bias is not None
    return np.asarray(centered / spread * norm.weight + norm.bias, dtype=np.float32)


def _block(config: Config, weights: CheckpointWeights, at: str, relative: _Positions | None) -> Block:
    """The block `at`, with the projections of the relative positions in its tables."""
    width, inner = positive(config, "hidden_size"), positive(config, "intermediate_size")
    epsilon, here = epsilon_of(config, default=1e-7), f"{at}.attention.self"
    return Block(
        qkv=_qkv_of_version_1(config, weights, here) if _is_first(config) else _qkv(weights, here, width),
        out=weights.linear(f"{at}.attention.output.dense", width, width),
        attention_norm=weights.norm(f"{at}.attention.output.LayerNorm", width, epsilon),
        up=weights.linear(f"{at}.intermediate.dense", inner, width),
        down=weights.linear(f"{at}.output.dense", width, inner),
        ffn_norm=weights.norm(f"{at}.output.LayerNorm", width, epsilon),
        relative=None if relative is None else _relative_tables(config, weights, here, relative),
    )


def _convolution(config: Config, weights: CheckpointWeights) -> Convolution | None:
    """Beside the first block, over a token and its neighbors to both sides (version 2 xlarge)."""
    if _is_first(config) or not config.get("conv_kernel_size"):
        return None
    width, tokens = positive(config, "hidden_size"), positive(config, "conv_kernel_size", most=255)
    if tokens % 2 == 0 or config.get("conv_groups", 1) != 1:
        raise unsupported(
            "config.json sets an even 'conv_kernel_size' or 'conv_groups', which is not followed"
        )
    stored = weights.array("encoder.conv.conv.weight", width, width, tokens)
    weight = stored.swapaxes(1, 2).reshape(width, tokens * width)  # the columns of one token side by side
    return Convolution(
        Linear(weight, weights.array("encoder.conv.conv.bias", width)),
        weights.norm("encoder.conv.LayerNorm", width, epsilon_of(config, default=1e-7)),
        activation_of(config, "conv_act", "tanh"),
    )


def _qkv(weights: CheckpointWeights, at: str, width: int) -> Linear:
    return weights.stacked([f"{at}.{name}_proj" for name in ("query", "key", "value")], [width] * 3, width)


def _qkv_of_version_1(config: Config, weights: CheckpointWeights, at: str) -> Linear:
    """Stored head by head, the rows of its query, key and value together; keys have no bias."""
    width, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    stored = weights.array(f"{at}.in_proj.weight", 3 * width, width)
    weight = stored.reshape(heads, 3, width // heads, width).swapaxes(0, 1).reshape(3 * width, width)
    biases = [weights.array(f"{at}.{name}", width) for name in ("q_bias", "v_bias")]
    return Linear(weight, np.concatenate([biases[0], np.zeros(width, np.float32), biases[1]]))


def _relative_tables(
    config: Config, weights: CheckpointWeights, at: str, relative: _Positions
) -> RelativeTables | None:
    """The vectors of the positions as keys and as queries, where config.json asks for them."""
    if _is_first(config):
        names = ("pos_proj", "pos_q_proj")
    else:
        names = (
            ("key_proj", "query_proj") if config.get("share_att_key") else ("pos_key_proj", "pos_query_proj")
        )
    width, kinds = positive(config, "hidden_size"), _position_kinds(config)
    keys, queries = (
        _projected(config, weights.linear(f"{at}.{name}", width, width, bias=name != "pos_proj"), relative)
        if kind in kinds
        else None
        for kind, name in zip(_KINDS, names, strict=True)
    )
    return None if keys is None and queries is None else RelativeTables(keys, queries)


def _projected(config: Config, linear: Linear, relative: _Positions) -> Array:
    """(heads, rows, head size), scaled."""
    width, heads = linear.shape[0], positive(config, "num_attention_heads")
    projected: Array = relative.vectors @ linear.read().T
    if linear.bias is not None:
        projected = projected + linear.bias
    scaled = projected * np.float32(_scale(config, width // heads))
    return np.ascontiguousarray(scaled.reshape(-1, heads, width // heads).swapaxes(0, 1))


def _is_first(config: Config) -> bool:
    return bool(config["model_type"] == "deberta")


def _head(config: Config) -> HeadLayout:
    """The first token through a layer, as wide as the network, and its activation."""
    activation = config.get("pooler_hidden_act", "gelu")
    if activation not in _HEAD_ACTIVATIONS:
        known = ", ".join(_HEAD_ACTIVATIONS)
        raise ModelError(f"config.json asks for pooler_hidden_act {activation!r}. Known: {known}")
    return HeadLayout("deberta.", "pooler.dense", "classifier", activation)


_KEYS = CONFIG_KEYS | key_set(
    "attention_head_size cls_dropout conv_act conv_groups conv_kernel_size embedding_size legacy",
    "max_relative_positions norm_rel_ebd padding_idx pooler_dropout pooler_hidden_act pooler_hidden_size pos_att_type",
    "position_biased_input position_buckets relative_attention share_att_key talking_head",
)


def _add(model_type: str, prefix: str) -> None:
    ARCHITECTURES.add(model_type)(
        Architecture(
            read, _head, class_prefix=prefix, config_keys=_KEYS, default_types=0, tokenizer_types=True
        )
    )


_add("deberta", "Deberta")
_add("deberta-v2", "DebertaV2")

"""The whole model as one graph: input_ids and attention_mask in, sentence_embedding out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.static_table import static_table
from gemel.encoder.architectures import FILES, is_known, read_network
from gemel.encoder.engines.onnx_graph import FAR, Multiply, add_network, multiply_float32
from gemel.encoder.engines.onnx_int8 import MultiplyInt8
from gemel.encoder.engines.smoothing import smoothing_factors
from gemel.encoder.network import Network
from gemel.errors import InputError, ModelError
from gemel.exporting.head import add_head
from gemel.exporting.pooling import add_pooling
from gemel.exporting.portable import PortableNodes
from gemel.exporting.words import add_words, type_table
from gemel.options import Precision

WEIGHT_BITS = 8
"""Of an int8 graph. `PortableNodes` stores weights without a sign: ONNX Runtime adds products of those in 32 bits
on any processor, and a file does not know where it will run."""


@dataclass(frozen=True)
class SentenceGraph:
    """Nodes with the names of what goes in and the length of what comes out."""

    nodes: PortableNodes
    inputs: tuple[str, ...]
    """input_ids, attention_mask and, where the architecture has them, token_type_ids: all (b, t) int64."""
    output: str
    """The node's name of the vectors, (b, dim)."""
    dim: int


def sentence_graph(
    checkpoint: Checkpoint,
    *,
    precision: Precision,
    unit: bool,
    dim: int | None = None,
    keep: int | None = None,
    unknown: int | None = None,
) -> SentenceGraph:
    """The graph of a checkpoint; `unknown` is the id of a token that never counts (model2vec's rule).

    `keep` numbers of a finished vector are given, where the checkpoint says so (`truncate_dim`).
    """
    _check_prompt(checkpoint)
    nodes = PortableNodes()
    mask = _mask(nodes, unknown, checkpoint.max_length)  # (b, t) float32
    three = nodes.node("Unsqueeze", mask, nodes.integers(2))  # (b, t, 1)
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    modes = checkpoint.pooling.modes
    if checkpoint.kind == "static":
        table = static_table(checkpoint)
        hidden, width = add_words(nodes, table, precision), int(table.shape[1])
    else:
        network = _network(checkpoint)
        words = add_words(nodes, network.word, precision)
        types = type_table(checkpoint, int(network.word.shape[1]))
        if types is not None:
            inputs = (*inputs, "token_type_ids")
            words = nodes.node("Add", words, nodes.node("Gather", nodes.constant(types), "token_type_ids"))
        hidden = add_network(
            nodes, network, _multiply(network, precision), words, _unseen(nodes, mask), "input_ids"
        )
        width = network.width
    pooled = add_pooling(nodes, hidden, three, modes)
    own = len(checkpoint.dense[-1].weight) if checkpoint.dense else width * len(modes)
    if dim is not None and dim > own:
        raise InputError(f"dim must be at most {own}, the model's own, got {dim}")
    keep = None if keep is None else min(keep, dim or own)
    output = add_head(nodes, pooled, checkpoint.dense, unit=unit, dim=dim, keep=keep)
    return SentenceGraph(nodes, inputs, output, keep or dim or own)


def _network(checkpoint: Checkpoint) -> Network:
    if not is_known(checkpoint.config):
        raise ModelError(
            f"{checkpoint.name} has the architecture {checkpoint.config.get('model_type')!r}, which gemel runs "
            f"through torch only and cannot export. Can be exported: {', '.join(sorted(FILES))}"
        )
    return read_network(checkpoint.config, checkpoint.weights)


def _multiply(network: Network, precision: Precision) -> Multiply:
    return (
        MultiplyInt8(WEIGHT_BITS, smoothing_factors(network), low_ends=True)
        if precision == "int8"
        else multiply_float32
    )


def _mask(nodes: PortableNodes, unknown: int | None, most: int | None) -> str:
    """1 where a token counts. Where unknown ones do not, the first `most` known ones do, wherever they stand."""
    mask = nodes.cast("attention_mask", "FLOAT")
    if unknown is None:
        return mask
    known = nodes.node("Not", nodes.node("Equal", "input_ids", nodes.constant(np.array(unknown))))
    mask = nodes.node("Mul", mask, nodes.cast(known, "FLOAT"))
    if most is None:
        return mask
    running = nodes.node("CumSum", mask, nodes.constant(np.array(1)))
    inside = nodes.cast(nodes.node("LessOrEqual", running, nodes.number(most)), "FLOAT")
    return nodes.node("Mul", mask, inside)


def _unseen(nodes: PortableNodes, mask: str) -> str:
    """What is added to the scores of keys, (b, 1, 1, t)."""
    four = nodes.node("Unsqueeze", mask, nodes.integers(1, 2))
    return nodes.node("Mul", nodes.node("Sub", nodes.number(1), four), nodes.constant(np.array(FAR)))


def _check_prompt(checkpoint: Checkpoint) -> None:
    if not checkpoint.pooling.include_prompt and checkpoint.prompts:
        raise ModelError(
            f"{checkpoint.name} leaves the tokens of its prompt out of the pooling, and a graph of ids and a mask "
            "cannot know which they are. Export another model"
        )

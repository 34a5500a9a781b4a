"""From token ids to word vectors inside the graph, the table in float32 or in int8."""

from __future__ import annotations

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.encoder.architectures.checkpoint_weights import CheckpointWeights
from gemel.encoder.int8_weights import quantize_linear
from gemel.encoder.network import Array
from gemel.exporting.portable import PortableNodes
from gemel.options import Precision

_WITH_TYPES = ("albert", "bert", "electra")  # whose tokenizers say to which text a token belongs


def add_words(nodes: PortableNodes, table: Array, precision: Precision) -> str:
    """Rows of the table (vocabulary, e) for "input_ids": (b, t, e). In int8 each row has a scale of its own."""
    if precision == "float32":
        return nodes.node("Gather", nodes.constant(table), "input_ids")
    small = quantize_linear(np.asarray(table, dtype=np.float32))
    rows = nodes.cast(nodes.node("Gather", nodes.constant(small.integers), "input_ids"), "FLOAT")
    scales = nodes.node("Gather", nodes.constant(small.scale[:, None].copy()), "input_ids")
    return nodes.node("Mul", rows, scales)


def type_table(checkpoint: Checkpoint, width: int) -> Array | None:
    """(types, e): what each token type adds to a word, beyond type 0, which the positions hold already.

    None: the architecture has no token types, or one only.
    """
    types = checkpoint.config.get("type_vocab_size", 2)
    if checkpoint.config.get("model_type") not in _WITH_TYPES or not isinstance(types, int) or types < 2:
        return None
    name = "embeddings.token_type_embeddings.weight"
    table = CheckpointWeights(checkpoint.weights).array(name, types, width)
    return np.asarray(table - table[0], dtype=np.float32)

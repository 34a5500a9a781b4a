"""Token types for engines that know only token ids: a second word table, for the tokens of the second text.

A network adds a row for the type of a token to its word's row. `Network` has row 0 among its positions; here row v + i
of a table of v words is row i for type 1 instead. No engine needs to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gemel.encoder.architectures.checkpoint_weights import CheckpointWeights
from gemel.encoder.architectures.settings import positive
from gemel.encoder.architectures.table import Config
from gemel.encoder.network import Array, Network


def with_token_types(network: Network, config: Config, weights: Mapping[str, Array]) -> Network:
    """The network with a word table twice as long: ids from `network.vocabulary` on are words of type 1."""
    types, width = positive(config, "type_vocab_size", 2), network.word.shape[1]
    table = CheckpointWeights(weights).array("embeddings.token_type_embeddings.weight", types, width)
    return replace(network, word=np.concatenate([network.word, network.word + (table[1] - table[0])]))

"""The token table of a static checkpoint, one row per token id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import Checkpoint
from gemel.errors import ModelError


def static_table(checkpoint: Checkpoint) -> NDArray[np.float32]:
    """(vocabulary, dim) float32; model2vec's row mapping and token weights are worked in.

    A view of the file where the file says it all.
    """
    weights = checkpoint.weights
    table = weights["embedding.weight"] if "embedding.weight" in weights else weights["embeddings"]
    mapping, factors = weights.get("mapping"), weights.get("weights")
    if mapping is not None:
        rows = np.asarray(mapping, dtype=np.int64)
        if rows.ndim != 1 or (len(rows) and not 0 <= rows.min() <= rows.max() < len(table)):
            raise ModelError(
                f"{checkpoint.folder}: 'mapping' points outside of the {len(table):,} rows of the table"
            )
        table = table[rows]
    table = np.asarray(table, dtype=np.float32)
    if factors is not None:
        if factors.shape != table.shape[:1]:
            raise ModelError(
                f"{checkpoint.folder}: {table.shape[0]:,} tokens, but token weights of shape {factors.shape}"
            )
        table = table * np.asarray(factors, dtype=np.float32)[:, None]
    return table

"""Why two texts score as they do: the cosine as a table of token pairs that sums to it. Model in, `Explanation` out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemel.explanation.parts import parts_of
from gemel.explanation.result import Explanation as Explanation
from gemel.model import Model
from gemel.options import EncodeOptions

__all__ = ["Explanation", "explain"]


def explain(
    model: Model, left: str, right: str, options: EncodeOptions | None = None, **changes: Any
) -> Explanation:
    """The cosine of two texts, split exactly into what each pair of tokens adds.

    Works where a vector is a sum over tokens: mean, mean-sqrt-len, weighted-mean, cls or last pooling, also joined,
    with dense layers without an activation (whitening). A bias shows as a token "(offset)". Other models are refused.
    `changes` are fields of EncodeOptions by name, as for `encode`.
    """
    one, other = parts_of(model, [left, right], options, **changes)
    lengths = np.linalg.norm(one.vectors.sum(axis=0)) * np.linalg.norm(other.vectors.sum(axis=0))
    table = one.vectors @ other.vectors.T / (lengths or 1.0)
    return Explanation(left, right, one.tokens, other.tokens, table, float(table.sum()))

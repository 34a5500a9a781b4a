"""How much a token counts in the mean of a text: frequent ones little (SIF, Arora et al. 2017)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SIF = 1e-4  # a token of this frequency counts half


def token_weights(tokens: int, counts: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """(tokens,) from 0 to 1. Without `counts`, vocabularies are taken to be sorted by frequency, as most are.

    With them, the share of a token is what was counted and, as far as few texts were, what Zipf's law says.
    """
    zipf = 1.0 / np.arange(1, tokens + 1)
    share = zipf / zipf.sum()
    if counts is not None:
        share = (counts + tokens * share) / (counts.sum() + tokens)
    return np.asarray(_SIF / (_SIF + share), dtype=np.float32)

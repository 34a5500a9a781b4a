"""Which row of the position table each token takes, where a text holds the padding token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.network import Array, Network
from gemel.types import Ids


def has_padding(network: Network, ids: Ids) -> NDArray[np.bool_]:
    """(b,) which texts hold the padding token, in a network where it takes no position."""
    if network.padding is None or network.positions is None:
        return np.zeros(len(ids), dtype=np.bool_)
    return np.asarray((ids == network.padding.id).any(axis=1))


def position_rows(network: Network, ids: Ids) -> Array:
    """(b, t, e), or (t, e) where all texts take the same rows: what is added to each token."""
    assert network.positions is not None
    if not has_padding(network, ids).any():
        return network.positions[: ids.shape[1]]
    assert network.padding is not None
    counted = ids != network.padding.id
    rows = network.positions[np.maximum(counted.cumsum(axis=1) - 1, 0)]
    return np.where(counted[..., None], rows, network.padding.position)

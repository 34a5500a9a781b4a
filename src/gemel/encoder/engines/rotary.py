"""The angles of rotary positions (RoFormer, arXiv 2104.09864): one table, so that all engines turn by the same bits."""

from __future__ import annotations

import numpy as np

from gemel.encoder.network import Array


def rotary_tables(theta: float, size: int, places: int) -> tuple[Array, Array]:
    """Cosines and sines (places, size/2) of place / theta^(2i/size).

    In float32, as the reference computes them: a model has learnt with these angles, and at place 8,000 their cosines
    are up to 4e-4 beside the true ones.
    """
    steps = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # The power in float64, rounded once: in float32 numpy's last bit is often not torch's, and places multiply it.
    speeds = np.float32(1) / np.power(theta, steps.astype(np.float64)).astype(np.float32)
    angles = np.arange(places, dtype=np.float32)[:, None] * speeds
    return np.cos(angles), np.sin(angles)

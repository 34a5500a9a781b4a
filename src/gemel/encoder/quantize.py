"""Weights in int8: one scale per output, so that a large row does not coarsen its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    """weight ≈ scale[:, None] * integers"""

    integers: NDArray[np.int8]
    """(out, in)"""
    scale: NDArray[np.float32]
    """(out,)"""


def quantize_linear(weight: NDArray[np.float32], *, bits: int = 8) -> QuantizedLinear:
    """Symmetric integers of `bits` bits: 8 where the processor adds products in 32 bits, 7 where in 16."""
    most = 2 ** (bits - 1) - 1
    scale = np.abs(weight).max(axis=1) / np.float32(most)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)  # a row of zeros stays zeros
    integers = np.rint(weight / scale[:, None]).astype(np.int8)
    return QuantizedLinear(np.ascontiguousarray(integers), scale)

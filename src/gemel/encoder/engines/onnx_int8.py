"""Linear layers in 8-bit integers whose result for a row depends on that row alone.

Each row of activations has a scale of its own, and weights have one per output. (ONNX Runtime's dynamic
quantisation takes one scale for a whole batch, so that a text's vector moves with its neighbours.)
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.engines.onnx_graph import Nodes
from gemel.encoder.int8 import QuantizedLinear, quantize_linear
from gemel.encoder.network import Array, Linear

_MIDDLE = 128  # the unsigned byte that stands for zero
_TINY = 1e-20  # a row of zeros would give the scale 0, and 0 / 0


def safe_weight_bits(cpuinfo: Path = Path("/proc/cpuinfo")) -> int:
    """8 where the processor sums byte products in 32 bits, else 7.

    Older x86 kernels add two products in 16 bits: 2 * 255 * 127 is over 32,767, 2 * 255 * 63 is not.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return 8
    try:
        flags = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return 7
    return 8 if flags & {"avx512_vnni", "avx_vnni", "amx_int8"} else 7


@dataclass(frozen=True)
class MultiplyInt8:
    """`Multiply` in integers of so many bits; shared weights (ALBERT) are quantised once."""

    bits: int
    factors: Mapping[Linear, Array] = field(default_factory=dict)
    """What `smoothing_factors` gives: divide the inputs of the layer by these, multiply its columns by them."""
    low_ends: bool = False
    """True: the 256 steps of a row go from its smallest number to its largest, as in the native kernel, for a sum more
    per layer. False: as far to both sides of zero as its largest number, which wastes steps where a row leans."""
    _done: dict[Linear, QuantizedLinear] = field(default_factory=dict)  # by identity
    _columns: dict[QuantizedLinear, NDArray[np.int8]] = field(default_factory=dict)

    def __call__(self, nodes: Nodes, x: str, linear: Linear, low: float | None = None) -> str:
        weight, bias = self._quantize(linear), linear.bias
        if linear in self.factors:
            x = nodes.node("Mul", x, nodes.constant(1 / self.factors[linear]))
        if low is None and self.low_ends:
            return self._leaning(nodes, x, weight, bias)
        if low is None:
            row_scale, zero = self._symmetric(nodes, x), _MIDDLE
        else:
            # All 256 steps for [low, largest]: shift x up by -low, and take what that adds off the bias.
            x = nodes.node("Add", x, nodes.number(-low)) if low else x
            row_scale, zero = self._shifted(nodes, x), 0
            added = (low * weight.integers.sum(axis=1, dtype=np.int64) * weight.scale).astype(np.float32)
            bias = added if bias is None else bias + added
        y = self._product(nodes, x, row_scale, zero, weight)
        return y if bias is None else nodes.node("Add", y, nodes.constant(bias))

    def _leaning(self, nodes: Nodes, x: str, weight: QuantizedLinear, bias: Array | None) -> str:
        """x = low + step * bytes in each row, so x @ w is low * (sum of w's row) + step * (bytes @ w)."""
        last = nodes.integers(-1)
        low = nodes.node("ReduceMin", x, last, keepdims=1)  # (rows, 1)
        raised = nodes.node("Sub", x, low)
        y = self._product(nodes, raised, self._shifted(nodes, raised), 0, weight)
        sums = (weight.integers.sum(axis=1, dtype=np.int64) * weight.scale).astype(np.float32)[None]
        y = nodes.node("Add", y, nodes.node("Mul", low, nodes.constant(sums)))
        return y if bias is None else nodes.node("Add", y, nodes.constant(bias))

    def _quantize(self, linear: Linear) -> QuantizedLinear:
        if linear not in self._done:
            weight = linear.weight * self.factors[linear] if linear in self.factors else linear.weight
            self._done[linear] = quantize_linear(weight, bits=self.bits)
        return self._done[linear]

    def _symmetric(self, nodes: Nodes, x: str) -> str:
        last = nodes.integers(-1)
        high = nodes.node("ReduceMax", x, last, keepdims=0)
        low = nodes.node("Neg", nodes.node("ReduceMin", x, last, keepdims=0))
        return self._scale(nodes, nodes.node("Max", high, low, nodes.number(_TINY)), 127)

    def _shifted(self, nodes: Nodes, x: str) -> str:
        high = nodes.node("ReduceMax", x, nodes.integers(-1), keepdims=0)
        return self._scale(nodes, nodes.node("Max", high, nodes.number(_TINY)), 255)

    def _scale(self, nodes: Nodes, largest: str, steps: int) -> str:
        return nodes.node("Mul", largest, nodes.number(1 / steps))  # (rows,)

    def _product(self, nodes: Nodes, x: str, row_scale: str, zero: int, weight: QuantizedLinear) -> str:
        byte: NDArray[Any] = np.array(zero, dtype=np.uint8)
        zeros = nodes.node("Expand", nodes.constant(byte), nodes.node("Shape", row_scale))
        rows = nodes.node("QuantizeLinear", x, row_scale, zeros, axis=0)  # (rows, in) uint8
        if weight not in self._columns:
            self._columns[weight] = np.ascontiguousarray(weight.integers.T)
        columns = nodes.constant(self._columns[weight])  # (in, out) int8
        scales = nodes.constant(weight.scale)
        y = nodes.fused("MatMulIntegerToFloat", rows, columns, nodes.number(1), scales, nodes.constant(byte))
        return nodes.node("Mul", y, nodes.node("Unsqueeze", row_scale, nodes.integers(1)))

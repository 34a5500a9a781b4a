"""Nodes of the ONNX standard only: what the engine asks of ONNX Runtime's own operators is spelled out."""

from __future__ import annotations

import numpy as np

from gemel.encoder.engines.onnx_nodes import Attribute, Nodes

_MIDDLE = 128  # the unsigned byte that stands for the weight 0


class PortableNodes(Nodes):
    """`Nodes` whose graphs any ONNX runtime can read. ONNX Runtime fuses what is spelled out here again."""

    def __init__(self) -> None:
        super().__init__()
        self._unsigned: dict[str, str] = {}  # constants of signed weights to the same without a sign

    def fused(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        match kind:
            case "FusedMatMul":
                alpha = attributes["alpha"]
                assert isinstance(alpha, float) and attributes["transB"] == 1, "what the attention asks for"
                return self._scores(*inputs, alpha=alpha)
            case "RotaryEmbedding":
                return self._rotate(*inputs)
            case "MatMulIntegerToFloat":
                return self._integer_product(*inputs)
        raise AssertionError(f"{kind} is not spelled out in nodes of the standard")

    def cast(self, x: str, like: str) -> str:
        """`x` as numbers of the ONNX type named `like`: FLOAT, INT64."""
        from onnx import TensorProto

        return self.node("Cast", x, to=int(getattr(TensorProto, like)))

    def _scores(self, q: str, k: str, *, alpha: float) -> str:
        """alpha * q @ k transposed, both (1, b, h, t, d/h)."""
        product = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 2, 4, 3]))
        return self.node("Mul", product, self.number(alpha))

    def _rotate(self, x: str, _start: str, cosines: str, sines: str) -> str:
        """(b, h, t, d/h) turned, the first token being at place 0."""
        zero, places = self.integers(0), self.node("Shape", x, start=2, end=3)
        cosine, sine = (self.node("Slice", table, zero, places, zero) for table in (cosines, sines))
        first, second = self.several("Split", x, outputs=2, axis=-1, num_outputs=2)
        left = self.node("Sub", self.node("Mul", first, cosine), self.node("Mul", second, sine))
        right = self.node("Add", self.node("Mul", second, cosine), self.node("Mul", first, sine))
        return self.node("Concat", left, right, axis=-1)

    def _integer_product(self, rows: str, columns: str, _one: str, scales: str, zero: str) -> str:
        """Bytes times bytes. With signed weights, x86 processors without VNNI add pairs of products in 16 bits, which
        overflow from 7 bits on."""
        if columns not in self._unsigned:
            signed = self.arrays[columns].astype(np.int16)
            self._unsigned[columns] = self.constant((signed + _MIDDLE).astype(np.uint8))
        middle = self.constant(np.array(_MIDDLE, dtype=np.uint8))
        product = self.node("MatMulInteger", rows, self._unsigned[columns], zero, middle)
        return self.node("Mul", self.cast(product, "FLOAT"), scales)

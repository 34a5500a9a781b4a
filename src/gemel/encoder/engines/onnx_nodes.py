"""Writing an ONNX graph: nodes and constants by name, and the bytes that a session reads.

Large arrays stay outside of the protobuf, which ends at 2 GB, and are handed to the session as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

OPSET = 20  # the first with Gelu
_FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators
_LARGE = 1024  # bytes; smaller constants go into the protobuf, where shape inference sees them

Attribute: TypeAlias = int | float | str | list[int]
Shape: TypeAlias = tuple[str | int, ...]  # a name stands for a length that differs from call to call


@dataclass(frozen=True)
class Graph:
    """A serialised model and the arrays that it names but does not hold."""

    model: bytes
    arrays: dict[str, NDArray[Any]]


class Nodes:
    """Collects nodes and constants; every method that adds one returns the name of its output."""

    def __init__(self) -> None:
        from onnx import helper

        self._helper = helper
        self.nodes: list[Any] = []  # onnx.NodeProto, which has no types
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[int, str] = {}  # id of an array -> its constant, so shared weights are stored once

    def constant(self, array: NDArray[Any]) -> str:
        """A constant; the same array object gives the same constant."""
        name = self._names.setdefault(id(array), f"c{len(self.arrays)}")
        self.arrays[name] = array
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        return self.several(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def fused(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        """One of ONNX Runtime's own operators."""
        return self.node(kind, *inputs, domain=_FUSED, **attributes)

    def several(
        self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Attribute
    ) -> list[str]:
        names = [f"n{len(self.nodes)}.{number}" for number in range(outputs)]
        self.nodes.append(self._helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def finish(self, output: str, words: Shape, hidden: Shape) -> Graph:
        """The model with the input "words" and the output "hidden", both float32 of these shapes."""
        from onnx import TensorProto, numpy_helper

        self.nodes.append(self._helper.make_node("Identity", [output], ["hidden"]))
        large = {name: array for name, array in self.arrays.items() if array.nbytes > _LARGE}
        constants = [
            _placeholder(name, array) if name in large else numpy_helper.from_array(array, name)
            for name, array in self.arrays.items()
        ]
        make_info = self._helper.make_tensor_value_info
        graph = self._helper.make_graph(
            self.nodes,
            "encoder",
            [make_info("words", TensorProto.FLOAT, words)],
            [make_info("hidden", TensorProto.FLOAT, hidden)],
            constants,
        )
        domains = [self._helper.make_opsetid("", OPSET), self._helper.make_opsetid(_FUSED, 1)]
        model = self._helper.make_model(graph, opset_imports=domains, ir_version=10)
        return Graph(model.SerializeToString(), large)


def _placeholder(name: str, array: NDArray[Any]) -> object:
    """An initializer without its data; the session gets the array itself."""
    from onnx import TensorProto, helper

    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="given to the session")
    return tensor

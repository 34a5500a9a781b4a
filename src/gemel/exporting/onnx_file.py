"""A graph to a .onnx file. Weights of more than a protobuf can hold go to a second file next to it, as ONNX has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.engines.onnx_nodes import OPSET
from gemel.exporting.graph import SentenceGraph

OUTPUT = "sentence_embedding"
MOST_INSIDE = 1_900_000_000
"""Bytes of weights that stay in the .onnx file; a protobuf ends at 2^31."""
_SMALL = 1024  # bytes; such constants stay inside always, where shape inference sees them
_ALIGNED = 4096


def write_onnx(
    graph: SentenceGraph, path: Path, facts: Mapping[str, str], *, most_inside: int = MOST_INSIDE
) -> tuple[Path, ...]:
    """Write the model and return its files; `facts` go into its metadata."""
    import onnx
    from onnx import TensorProto, helper

    nodes = graph.nodes
    last = helper.make_node("Identity", [graph.output], [OUTPUT])
    used = {name for node in nodes.nodes for name in node.input}
    arrays = {name: np.asarray(array, order="C") for name, array in nodes.arrays.items() if name in used}
    outside = sum(array.nbytes for array in arrays.values()) > most_inside
    data = path.with_name(f"{path.name}_data")
    constants = _outside(arrays, data) if outside else _inside(arrays)
    made = helper.make_graph(
        [*nodes.nodes, last],
        "sentence_encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "tokens"))
            for name in graph.inputs
        ],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ("batch", graph.dim))],
        constants,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10, producer_name="gemel"
    )
    helper.set_model_props(model, dict(facts))
    onnx.save_model(model, str(path))
    return (path, data) if outside else (path,)


def _inside(arrays: Mapping[str, NDArray[Any]]) -> list[object]:
    from onnx import numpy_helper

    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _outside(arrays: Mapping[str, NDArray[Any]], data: Path) -> list[object]:
    """Large arrays one after the other in `data`, at places that a memory map can start at."""
    from onnx import TensorProto, helper, numpy_helper

    constants: list[object] = []
    with data.open("wb") as sink:
        for name, array in arrays.items():
            if array.nbytes <= _SMALL:
                constants.append(numpy_helper.from_array(array, name))
                continue
            sink.write(bytes(-sink.tell() % _ALIGNED))
            tensor = TensorProto(
                name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
            )
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", sink.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            sink.write(array.data)
            constants.append(tensor)
    return constants

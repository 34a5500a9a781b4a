"""The bytes that we write for ONNX are those that the package onnx reads, and the message that it would build."""

from __future__ import annotations

import numpy as np
import pytest

from gemel.encoder.engines.onnx_graph import FLOAT, INT64, OPSET, Node, Value, model_file, tensor

onnx = pytest.importorskip("onnx", reason="in the test extra")

ARRAYS = {
    "floats": np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3),
    "number": np.array(-1e30, np.float32),
    "integers": np.array([-1, 0, 2**40, -(2**62)]),
    "bytes": np.arange(256, dtype=np.uint8),
    "signed": np.arange(-128, 128, dtype=np.int8),
    "small": np.array([[7], [-7]], np.int32),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 4), np.float32),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}
NODES = [
    Node("Gemm", ("words", "floats"), ("n0.0",), "", {"transB": 1, "alpha": 0.125}),
    Node("Gelu", ("n0.0",), ("n1.0",), "", {"approximate": "tanh"}),
    Node("Transpose", ("n1.0",), ("n2.0",), "", {"perm": [0, 2, 1, -3, 300]}),
    Node("Split", ("n2.0", "integers"), ("a", "b"), "com.microsoft", {"axis": -1}),
    Node("Größe", (), ("hidden",)),
]


def expected(facts):
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node(
                node.kind, list(node.inputs), list(node.outputs), domain=node.domain, **node.attributes
            )
            for node in NODES
        ],
        "encoder",
        [helper.make_tensor_value_info("words", onnx.TensorProto.FLOAT, ("b", "t", 384))],
        [helper.make_tensor_value_info("hidden", onnx.TensorProto.INT64, ("b", 0, 1))],
        [onnx.numpy_helper.from_array(array, name) for name, array in ARRAYS.items()],
    )
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10, producer_name="gemel")
    helper.set_model_props(model, facts)
    return model


def test_the_message_is_the_one_that_the_package_onnx_builds():
    facts = {"model": "Modell für Sätze", "empty": "", "long": "x" * 1000}
    parts = model_file(
        "encoder",
        NODES,
        inputs=[Value("words", FLOAT, ("b", "t", 384))],
        outputs=[Value("hidden", INT64, ("b", 0, 1))],
        constants=[tensor(name, array) for name, array in ARRAYS.items()],
        domains={"": OPSET, "com.microsoft": 1},
        facts=facts,
    )
    read = onnx.load_model_from_string(b"".join(parts))
    assert read == expected(facts)
    for constant in read.graph.initializer:
        array = onnx.numpy_helper.to_array(constant)
        assert array.dtype == ARRAYS[constant.name].dtype
        assert np.array_equal(array, ARRAYS[constant.name])


def test_data_outside_of_the_file_are_named():
    where = {"location": "model.onnx_data", "offset": "4096", "length": "24"}
    read = onnx.TensorProto.FromString(b"".join(tensor("floats", ARRAYS["floats"], where)))
    assert read.data_location == onnx.TensorProto.EXTERNAL
    assert {each.key: each.value for each in read.external_data} == where
    assert (read.name, list(read.dims), read.data_type) == ("floats", [2, 3], onnx.TensorProto.FLOAT)
    assert not read.raw_data


def test_weights_are_not_copied_into_the_file():
    parts = tensor("floats", ARRAYS["floats"])
    [data] = [part for part in parts if isinstance(part, memoryview)]
    assert np.shares_memory(np.asarray(data), ARRAYS["floats"])

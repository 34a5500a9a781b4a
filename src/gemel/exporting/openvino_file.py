"""An ONNX file to OpenVINO's own format, and the run that checks it. Needs the package openvino."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gemel.errors import InputError
from gemel.exporting.check import Feed, Run
from gemel.exporting.onnx_file import OUTPUT
from gemel.network_use import without_module
from gemel.types import Vectors

_NAME = "openvino_model.xml"  # and .bin: where optimum-intel looks


def write_openvino(source: Path, folder: Path) -> Path:
    """openvino_model.xml and .bin in `folder`, in float32."""
    openvino = _openvino()
    target = folder / _NAME
    # Not convert_model, which reports what it converts.
    openvino.save_model(openvino.Core().read_model(str(source)), str(target), compress_to_fp16=False)
    return target


def openvino_run(path: Path) -> Run:
    """The model on the CPU in float32, whatever the processor would rather take."""
    openvino = _openvino()
    compiled: Any = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Feed) -> Vectors:
        vectors: Vectors = compiled(dict(inputs))[OUTPUT].copy()
        return vectors

    return run


def _openvino() -> Any:  # noqa: ANN401 - a module without types
    try:
        # It sends an event when it is imported. Without the module that sends, it uses a stand-in of its own.
        with without_module("openvino_telemetry"):
            return import_module("openvino")
    except ImportError as error:
        raise InputError(
            "an export to OpenVINO needs the package 'openvino'. Install it with: pip install openvino"
        ) from error

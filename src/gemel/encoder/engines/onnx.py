"""The ONNX Runtime engine: any Network, on any processor or accelerator that ONNX Runtime drives.

One session serves all threads. On the CPU a call runs in the thread that makes it, so the caller decides how many cores
are used; no result depends on that. onnxruntime is imported here only, with its usage reports disabled.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from gemel.encoder.engines.engine import check_ids
from gemel.encoder.engines.onnx_graph import (
    Graph,
    Multiply,
    MultiplyInt8,
    build_graph,
    multiply_float32,
    safe_weight_bits,
)
from gemel.encoder.int8 import smoothing_factors
from gemel.encoder.network import Network, has_padding, position_rows
from gemel.errors import InputError
from gemel.files.machine import disable_usage_reports
from gemel.options import Precision
from gemel.types import Ids, Vectors

PROVIDERS = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime (on macOS)"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "directml": ("DmlExecutionProvider", "onnxruntime-directml"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "qnn": ("QNNExecutionProvider", "onnxruntime-qnn"),
    "rocm": ("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu"),
}
"""Device to ONNX Runtime's name for it and the package that has it."""


class Provider(NamedTuple):
    """What ONNX Runtime calls a device, and the options to start it with."""

    name: str
    options: dict[str, str]


class _Session(Protocol):
    """The one method that we use of onnxruntime.InferenceSession."""

    def run(self, outputs: list[str], inputs: dict[str, Vectors]) -> list[Vectors]: ...


class OnnxEngine:
    """Fits `Engine`. `device` may carry a number, as in "cuda:1"; int8 is for the CPU."""

    name = "onnxruntime"
    batch_tokens = 512

    def __init__(
        self,
        network: Network,
        *,
        precision: Precision = "float32",
        device: str = "cpu",
        threads_per_call: int = 1,
        weight_bits: int | None = None,
    ) -> None:
        provider = choose_provider(device)
        self.width = network.width
        self.precision = precision
        self.device = device
        self.weight_bits = (weight_bits or safe_weight_bits()) if precision == "int8" else None
        if self.weight_bits and device != "cpu":
            raise InputError(
                f"precision 'int8' runs on device 'cpu', not on {device!r}. Use precision 'float32'"
            )
        multiply: Multiply = multiply_float32
        if self.weight_bits:
            multiply = MultiplyInt8(self.weight_bits, smoothing_factors(network))
        self._inner = network.ffn_width
        self._heads = network.heads
        self._network = network
        self._word, self._places = network.word, network.max_positions
        self._session = _start_session(build_graph(network, multiply), provider, threads_per_call)

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32."""
        check_ids(ids, vocabulary=len(self._word), max_positions=self._places)
        words = self._words(ids)
        if ids.size == 1:
            # A matrix of one row takes another kernel, which sums in another order: other bits.
            return self._run(np.concatenate([words, words]))[:1]
        return self._run(words)

    def _words(self, ids: Ids) -> Vectors:
        """(b, t, e). The graph adds the positions; a text with the padding token needs others."""
        words: Vectors = self._word[ids]
        padded = has_padding(self._network, ids)
        if padded.any():
            assert self._network.positions is not None
            usual = self._network.positions[: ids.shape[1]]
            words[padded] += position_rows(self._network, ids[padded]) - usual
        return words

    def bytes_per_text(self, tokens: int) -> int:
        """The arena at its fullest: a few matrices of each width, and the scores of all heads."""
        return 4 * tokens * (8 * self.width + 3 * self._inner + 2 * self._heads * tokens)

    def _run(self, words: Vectors) -> Vectors:
        return self._session.run(["hidden"], {"words": words})[0]


def choose_provider(device: str) -> Provider:
    """ONNX Runtime's name and options for a device; an error lists the available devices."""
    onnxruntime = load_onnxruntime()

    kind, _, number = device.partition(":")
    available = onnxruntime.get_available_providers()
    if kind not in PROVIDERS or (number and not number.isdecimal()):
        raise InputError(
            f"unknown device {device!r}. Known: {', '.join(PROVIDERS)}; a number may follow, as in cuda:1"
        )
    provider, package = PROVIDERS[kind]
    if provider not in available:
        here = [name for name, (known, _) in PROVIDERS.items() if known in available]
        raise InputError(
            f"device {device!r} is not available: this ONNX Runtime knows {', '.join(here)}. "
            f"Install it with: pip install {package}"
        )
    return Provider(provider, {"device_id": number} if number else {})


def _start_session(graph: Graph, provider: Provider, threads: int) -> _Session:
    onnxruntime = load_onnxruntime()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    values = [
        onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for a in graph.arrays.values()
    ]
    options.add_external_initializers(list(graph.arrays), values)
    # What the device has no kernel for runs on the CPU.
    providers = dict([provider, (PROVIDERS["cpu"][0], {})])
    session = onnxruntime.InferenceSession(graph.model, options, providers=list(providers.items()))
    started: str = session.get_providers()[0]
    if started != provider.name:
        raise InputError(
            f"ONNX Runtime could not start {provider.name} and fell back to {started}. "
            "Check the device and its driver, or ask for device 'cpu'"
        )
    return cast(_Session, session)


def load_onnxruntime() -> Any:  # noqa: ANN401 - the module, which has no types
    """The module onnxruntime. On import it would make a device id and a database in the user's cache folder."""
    off = disable_usage_reports("onnxruntime")
    import onnxruntime

    # For a program that imported it first, and for releases that do not know the variable.
    if off and hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime

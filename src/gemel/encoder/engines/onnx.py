"""The ONNX Runtime engine: any Network, on any processor or accelerator that ONNX Runtime drives.

One session serves all threads. On the CPU a call runs in the thread that makes it, so the caller decides how many cores
are used; no result depends on that. onnxruntime is imported here only, with its usage reports disabled. In int8 each
row of activations has its own scale and weights have one per output: a row's result depends on that row alone.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.engines.engine import check_ids
from gemel.encoder.engines.onnx_graph import Graph, Multiply, Nodes, build_graph, multiply_float32
from gemel.encoder.int8 import QuantizedLinear, quantize_linear, smoothing_factors
from gemel.encoder.network import Array, Linear, Network, has_padding, position_rows
from gemel.errors import InputError, MissingExtra
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
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("engine 'onnxruntime'", "onnxruntime", "onnxruntime") from error
    # For a program that imported it first, and for releases that do not know the variable.
    if off and hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime


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
    """`Multiply` in integers of so many bits; shared weights (ALBERT) are quantized once."""

    bits: int
    factors: Mapping[Linear, Array] = field(default_factory=dict)
    """What `smoothing_factors` gives: divide the inputs of the layer by these, multiply its columns by them."""
    low_ends: bool = False
    """True: the 256 steps of a row span its range, as in the native kernel, at the cost of one more sum per layer.
    False: they are symmetric around zero, which wastes steps where a row is not."""
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
            weight = linear.read()
            weight = weight * self.factors[linear] if linear in self.factors else weight
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

"""Which engine runs a checkpoint: the requested one, or the first that can. A model has one for each precision."""

from __future__ import annotations

import threading
from typing import get_args

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.checkpoint.folder import Checkpoint, static_table
from gemel.encoder.engines.native import NativeEngine, why_not
from gemel.encoder.engines.port import Engine
from gemel.encoder.engines.static import StaticEngine
from gemel.encoder.head import check_weights
from gemel.encoder.int8 import Int8Store
from gemel.encoder.network import Network
from gemel.encoder.weights import read_network
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.options import EngineName, Precision


def open_engine(
    checkpoint: Checkpoint,
    *,
    precision: Precision = "float32",
    device: str = "cpu",
    engine: EngineName = "auto",
    network: Network | None = None,
) -> Engine:
    """The engine for a checkpoint; `network` is run instead of its own, where a caller has changed it.

    "auto" takes the native kernel on the CPU, ONNX Runtime where the kernel cannot run or another device is asked
    for, and torch for an architecture that has no file here.
    """
    if engine not in get_args(EngineName):
        raise InputError(f"engine must be one of {', '.join(get_args(EngineName))}, got {engine!r}")
    if checkpoint.kind == "static":
        return StaticEngine(static_table(checkpoint))
    known = architecture_of(checkpoint.config) is not None
    if not known and engine not in ("auto", "torch"):
        raise InputError(_cannot_read(checkpoint, engine))
    if engine == "torch" or not known:
        return _torch(checkpoint, precision, device, asked=engine == "torch")
    network = network or read_network(checkpoint.config, checkpoint.weights)
    reason = "it runs on the CPU only" if device != "cpu" else why_not(network, precision)
    if engine == "native" and reason:
        raise InputError(f"engine 'native' cannot run {checkpoint.name}: {reason}. Use engine='onnxruntime'")
    if reason or engine == "onnxruntime":
        return _onnx(network, precision, device)
    store = Int8Store(checkpoint.folder, checkpoint.parts) if precision == "int8" else None
    return NativeEngine(network, precision=precision, store=store)


def _onnx(network: Network, precision: Precision, device: str) -> Engine:
    from gemel.encoder.engines.onnx import OnnxEngine

    return OnnxEngine(network, precision=precision, device=device)


def open_pair_engine(
    checkpoint: Checkpoint, *, typed: bool, precision: Precision, device: str, engine: EngineName
) -> Engine:
    """The torch engine for a cross-encoder with its own head, which gives (pairs, 1, labels)."""
    if engine not in ("auto", "torch"):
        raise InputError(_cannot_read(checkpoint, engine))
    return _torch(checkpoint, precision, device, asked=engine == "torch", typed=typed)


def _cannot_read(checkpoint: Checkpoint, engine: EngineName) -> str:
    kind = checkpoint.config.get("model_type")
    return (
        f"engine {engine!r} cannot run {checkpoint.name}: gemel cannot read its architecture {kind!r} itself. "
        f"Known: {', '.join(model_types())}. Use engine='torch'"
    )


def _torch(
    checkpoint: Checkpoint, precision: Precision, device: str, *, asked: bool, typed: bool | None = None
) -> Engine:
    """`typed`: a cross-encoder, and whether it is told which text a token is of. None: a sentence encoder."""
    from gemel.encoder.engines.torch import TorchEngine, TorchPairEngine

    kind = checkpoint.config.get("model_type")
    known = ", ".join(model_types())
    if precision != "float32":
        raise ModelError(f"architecture {kind!r} runs in torch, which has float32 only; int8 is for: {known}")
    check_weights(checkpoint)
    try:
        if typed is None:
            return TorchEngine(checkpoint, device=device)
        return TorchPairEngine(checkpoint, typed=typed, device=device)
    except MissingExtra as error:
        if asked:
            raise
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which gemel cannot read itself. Known: {known}. "
            "With torch it may run: pip install 'gemel[train]'"
        ) from error


class EnginePool:
    """Safe to use from several threads: two that ask at once get the same engine."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        engine: EngineName,
        device: str,
        network: Network | None = None,
        typed: bool | None = None,
    ) -> None:
        """`typed`: a cross-encoder that torch runs with its head. `network` is run instead of the checkpoint's own."""
        self._typed = typed
        self._checkpoint, self._engine, self._device, self._network = checkpoint, engine, device, network
        self._opened: dict[Precision, Engine] = {}
        self._opening = threading.Lock()

    def __getitem__(self, precision: Precision) -> Engine:
        with self._opening:
            if precision not in self._opened:
                self._opened[precision] = self._open(precision)
            return self._opened[precision]

    def _open(self, precision: Precision) -> Engine:
        if self._typed is not None:
            return open_pair_engine(
                self._checkpoint,
                typed=self._typed,
                precision=precision,
                device=self._device,
                engine=self._engine,
            )
        return open_engine(
            self._checkpoint,
            precision=precision,
            device=self._device,
            engine=self._engine,
            network=self._network,
        )

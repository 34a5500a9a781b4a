"""What an engine is, which one runs a checkpoint, and the engines of a model: one per precision.

An engine turns token ids into hidden states, and does nothing else.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.checkpoint.folder import Checkpoint, static_table
from gemel.encoder.tokenizer import outside
from gemel.errors import InputError, MissingExtra, ModelError
from gemel.options import EngineName, Precision, check_choice
from gemel.types import Ids, Vectors

if TYPE_CHECKING:
    from gemel.encoder.network import Array, Network


class Engine(Protocol):
    """Runs one network. Safe to call from several threads at once.

    Batch invariance: the hidden states of a row are the same bits whatever the other rows are, and on any number of
    threads.
    """

    name: str
    width: int
    batch_tokens: int
    """Tokens per call at which this engine is fastest."""

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32.

        The call uses one core, or up to `threads` of them where the engine can share one call.
        """
        ...

    def bytes_per_text(self, tokens: int) -> int:
        """Working memory for one text of so many tokens while it runs, result included."""
        ...


@runtime_checkable
class MixingEngine(Engine, Protocol):
    """An engine that takes groups of several lengths in one call, so that few texts of many lengths fill it."""

    def hidden_many(
        self, groups: Sequence[Ids], threads: int = 1, seen: Sequence[NDArray[np.int64]] | None = None
    ) -> list[Vectors]:
        """`hidden` of each group. `seen`: of each text, how many tokens its tokens see, from the first; None: all."""
        ...


class EnginePool:
    """The engines of one model, opened on first use. Safe to use from several threads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        engine: EngineName,
        device: str,
        network: Network | None = None,
        typed: bool | None = None,
    ) -> None:
        """As `open_engine`."""
        self._engine, self._device = engine, device
        self._open = partial(
            open_engine, checkpoint, engine=engine, device=device, network=network, typed=typed
        )
        self._opened: dict[Precision, Engine] = {}
        self._opening = threading.Lock()

    def __getitem__(self, precision: Precision) -> Engine:
        precision = arithmetic(precision, self._engine, self._device)
        with self._opening:
            if precision not in self._opened:
                self._opened[precision] = self._open(precision=precision)
            return self._opened[precision]


def arithmetic(precision: Precision, engine: EngineName = "auto", device: str = "cpu") -> Precision:
    """What is computed in where `precision` is requested.

    bfloat16 needs the native engine and a processor with instructions for it; elsewhere it is computed in float32.
    """
    if precision != "bfloat16":
        return precision
    if device != "cpu" or engine not in ("auto", "native"):
        return "float32"
    from gemel.encoder.engines.native import chosen_level, levels, runs_bfloat16

    return "bfloat16" if levels() and runs_bfloat16(chosen_level()) else "float32"


def open_engine(
    checkpoint: Checkpoint,
    *,
    precision: Precision = "float32",
    device: str = "cpu",
    engine: EngineName = "auto",
    network: Network | None = None,
    typed: bool | None = None,
) -> Engine:
    """The engine for a checkpoint; `network` is run instead of its own, where a caller has changed it.

    `typed`: a cross-encoder that torch runs with its head, and whether it gets token types. None: a sentence encoder.
    "auto" takes the native kernel on the CPU, ONNX Runtime where the kernel cannot run (NumPy if that is not there) or
    for another device, and torch for an architecture that gemel does not read itself.
    """
    check_choice("engine", engine, get_args(EngineName))
    if checkpoint.kind == "static":
        return StaticEngine(static_table(checkpoint))
    known = typed is None and architecture_of(checkpoint.config) is not None
    if not known and engine not in ("auto", "torch"):
        kind = checkpoint.config.get("model_type")
        raise InputError(
            f"engine {engine!r} cannot run {checkpoint.name}: gemel cannot read its architecture {kind!r} itself. "
            f"Known: {', '.join(model_types())}. Use engine='torch'",
            code="GEM-205",
        )
    if engine == "torch" or not known:
        return _torch(checkpoint, precision, device, requested=engine == "torch", typed=typed)
    return _own_engine(checkpoint, precision, device, engine, network)


def _own_engine(
    checkpoint: Checkpoint, precision: Precision, device: str, engine: EngineName, network: Network | None
) -> Engine:
    from gemel.encoder.engines.native import NativeEngine, levels, why_not
    from gemel.encoder.weights import read_network

    network = network or read_network(checkpoint.config, checkpoint.weights)
    reason = "it runs on the CPU only" if device != "cpu" else why_not(network)
    if engine == "native" and reason:
        raise InputError(
            f"engine 'native' cannot run {checkpoint.name}: {reason}. Use engine='onnxruntime'",
            code="GEM-103",
        )
    if reason or engine in ("onnxruntime", "numpy"):
        if engine == "auto" and device == "cpu" and not (levels() and has_onnxruntime()):
            _warn_slow(None if not levels() else f"the native engine cannot run {checkpoint.name} ({reason})")
        return _portable(network, precision, device, engine)
    if precision != "int8":
        return NativeEngine(network, precision=precision)
    from gemel.encoder.int8 import Int8Store

    store = Int8Store(checkpoint.folder, checkpoint.parts, str(checkpoint.config.get("default_task") or ""))
    return NativeEngine(network, precision=precision, store=store)


def _portable(network: Network, precision: Precision, device: str, engine: EngineName) -> Engine:
    """ONNX Runtime; NumPy if that is requested, or ONNX Runtime is not and is not installed."""
    if engine == "numpy" or (engine == "auto" and device == "cpu" and not has_onnxruntime()):
        from gemel.encoder.engines.reference import NumpyEngine

        if precision == "int8":
            raise MissingExtra("precision 'int8' without a kernel that runs it", "onnxruntime", "onnxruntime")
        return NumpyEngine(network)
    from gemel.encoder.engines.onnx import OnnxEngine

    return OnnxEngine(network, precision="int8" if precision == "int8" else "float32", device=device)


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime, or a package that replaces it, is installed."""
    return find_spec("onnxruntime") is not None


def without_kernel() -> str:
    """What follows where no kernel was compiled at install, and what to do."""
    wheel = (
        "Install a wheel of gemel that was built for this platform, or GCC or Clang and then gemel again "
        "(pip install --force-reinstall --no-deps)"
    )
    if has_onnxruntime():
        return f"ONNX Runtime runs the models, more slowly. {wheel}"
    return f"NumPy runs the models, many times more slowly. {wheel}, or ONNX Runtime (pip install 'gemel[onnxruntime]')"


class KernelWarning(UserWarning):
    """Models run more slowly than they could, because this installation of gemel has no compiled kernel."""

    code = "GEM-103"


@cache
def _warn_slow(reason: str | None) -> None:
    """Warn once for a reason, None: no kernel; not in the processes of a pool, of which each would repeat it."""
    from gemel.files.machine import is_pool_process

    message = (
        f"this installation of gemel has no compiled kernel: {without_kernel()}"
        if reason is None
        else f"{reason}: NumPy runs it, many times more slowly. Install ONNX Runtime (pip install 'gemel[onnxruntime]')"
    )
    if not is_pool_process():
        chosen = "onnxruntime" if has_onnxruntime() else "numpy"
        warnings.warn(
            f"{message}. engine={chosen!r} chooses it without this line", KernelWarning, stacklevel=outside()
        )


def _torch(
    checkpoint: Checkpoint, precision: Precision, device: str, *, requested: bool, typed: bool | None
) -> Engine:
    from gemel.encoder.engines.torch import TorchEngine, TorchPairEngine
    from gemel.encoder.head import check_weights

    kind = checkpoint.config.get("model_type")
    known = ", ".join(model_types())
    if precision == "int8":
        raise ModelError(f"architecture {kind!r} runs in torch, which has float32 only; int8 is for: {known}")
    check_weights(checkpoint)
    try:
        if typed is None:
            return TorchEngine(checkpoint, device=device)
        return TorchPairEngine(checkpoint, typed=typed, device=device)
    except MissingExtra as error:
        if requested:
            raise
        raise ModelError(
            f"{checkpoint.name} has the architecture {kind!r}, which gemel cannot read itself. Known: {known}. "
            "With torch it may run: pip install 'gemel[train]'"
        ) from error


class StaticEngine:
    """The engine of a static model: the vector of a token is its row of a table, which may be a view of a file."""

    name = "static"
    batch_tokens = 65_536

    def __init__(self, table: Array) -> None:
        self._table = table
        self.width = int(table.shape[1])

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids -> (b, t, width): the rows."""
        check_ids(ids, vocabulary=len(self._table), max_positions=ids.shape[1] if ids.ndim == 2 else 0)
        rows: Vectors = self._table[ids]
        return rows

    def bytes_per_text(self, tokens: int) -> int:
        """The rows themselves, twice: once gathered, once summed."""
        return 8 * tokens * self.width


def check_ids(ids: Ids, *, vocabulary: int, max_positions: int) -> None:
    """Refuse token ids that are not those of at least one text, inside the vocabulary and the positions."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise InputError(f"token ids must be (texts, tokens) with at least one of each, got {ids.shape}")
    if ids.shape[1] > max_positions:
        raise InputError(
            f"the texts have {ids.shape[1]} tokens, the network has {max_positions} positions. Cut them first"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        bad = low if low < 0 else high
        raise InputError(
            f"token id {bad} is outside the vocabulary (0 to {vocabulary - 1}). "
            "The tokenizer and the weights belong to different models"
        )

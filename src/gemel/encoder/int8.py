"""Weights in int8, one scale per output, cached next to the model; and smoothing of channels with large activations.

The cache file is written again when it is missing, old, unreadable or made from other weights; it is not needed where
it cannot be written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.files import Tensors
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.network import Array, Linear, Network
from gemel.errors import ModelError
from gemel.files.atomic import atomic_file, write_atomic

Factors: TypeAlias = Callable[[], Mapping[Linear, NDArray[np.float32]]]

_VERSION = "5"

_FIRST_PART, _SAMPLES, _SAMPLE = 2**18, 64, 4096  # bytes


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    """weight * factors ≈ scale[:, None] * integers; the inputs are divided by the factors before the product."""

    integers: NDArray[np.int8]
    """(out, in)"""
    scale: NDArray[np.float32]
    """(out,)"""
    factors: NDArray[np.float32] | None = None
    """(in,) powers of two that smooth large channels; None: all ones."""


def quantize_linear(
    weight: NDArray[np.float32], *, bits: int = 8, factors: NDArray[np.float32] | None = None
) -> QuantizedLinear:
    """Symmetric integers of `bits` bits: 7 for ONNX Runtime on processors that add products in 16 bits."""
    weight = weight if factors is None else weight * factors
    most = 2 ** (bits - 1) - 1
    scale = np.abs(weight).max(axis=1, initial=0) / np.float32(most)
    if not np.isfinite(scale).all():
        raise ModelError(
            f"a layer with weights of shape {weight.shape} cannot be stored in int8: they or its inputs hold "
            "NaN or infinite values. Fetch or save the model again"
        )
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)  # a row of zeros stays zeros
    integers = np.rint(weight / scale[:, None]).astype(np.int8)
    return QuantizedLinear(np.ascontiguousarray(integers), scale, factors)


class Int8Store:
    """Quantized layers by name, cached in `FOLDER/.gemel/`."""

    def __init__(self, folder: Path | None = None, sources: Sequence[Path] = (), task: str = "") -> None:
        """`sources`: the weight files that the integers are made from; `task`: the adapter in them that is added.

        Without a folder nothing is cached.
        """
        self._task = task
        self._folder = folder / ".gemel" if folder else None
        self._sources = sources
        self._known: Tensors | None = None
        self._made: dict[str, QuantizedLinear] = {}

    def open(self) -> Int8Store:
        """The store with what an earlier run cached."""
        path = self._path()
        if path and path.is_file():
            with suppress(ModelError, OSError):
                known = Tensors({path: None})
                if _Source(path, self._sources).is_of(known.metadata(path).get("content")):
                    self._known = known
        return self

    def get(self, name: str, linear: Linear, factors: Factors) -> QuantizedLinear:
        """The layer's integers, cached or computed now; `factors` is called only when they are computed."""
        known = self._known
        if known is not None and f"{name}.integers" in known and f"{name}.scale" in known:
            integers = np.asarray(known[f"{name}.integers"])
            if integers.shape == linear.shape:
                return QuantizedLinear(
                    integers.view(np.int8), known[f"{name}.scale"], known.get(f"{name}.factors")
                )
        self._made[name] = quantize_linear(linear.read(), factors=factors().get(linear))
        return self._made[name]

    def save(self) -> None:
        """Cache what was computed, atomically; a folder that cannot be written to is not an error."""
        path = self._path()
        if not path or not self._made or self._known is not None:
            return
        from safetensors.numpy import save_file

        tensors: dict[str, NDArray[np.generic]] = {}
        for name, layer in self._made.items():
            tensors |= {f"{name}.integers": layer.integers, f"{name}.scale": layer.scale}
            if layer.factors is not None:
                tensors[f"{name}.factors"] = layer.factors
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            content = full_digest(self._sources)
            with atomic_file(path) as temporary:
                save_file(tensors, temporary, metadata={"content": content})
            _Source(path, self._sources).note(content)

    def _path(self) -> Path | None:
        """The name is a hash of what the integers depend on, and of samples of the weights."""
        if self._folder is None:
            return None
        quick = quick_digest(self._sources)
        task = f" {self._task}" if self._task else ""
        digest = hashlib.sha256(f"{_VERSION} {quick}{task}".encode()).hexdigest()
        return self._folder / f"int8-{digest[:16]}.safetensors"


class _Source:
    """The weight files that a cache file was made from: their content, and when it was last compared in full."""

    def __init__(self, cached: Path, sources: Sequence[Path]) -> None:
        self._sources = sources
        self._note = cached.with_suffix(".json")

    def is_of(self, content: object) -> bool:
        """Whether the sources have this content. They are read in full once, and again when a file was changed."""
        stamp = self._stamp()
        if self._read() == {"content": content, "files": stamp}:
            return True
        if content != full_digest(self._sources):
            return False
        self.note(str(content))
        return True

    def note(self, content: str) -> None:
        """Note that the sources have this content; where that cannot be written, they are compared again."""
        with suppress(OSError):
            write_atomic(self._note, {"content": content, "files": self._stamp()})

    def _read(self) -> object:
        try:
            return json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _stamp(self) -> list[list[int]]:
        """With ctime, which a program that unpacks or copies cannot set."""
        stats = [path.stat() for path in self._sources]
        return [[at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns] for at in stats]


def quick_digest(sources: Sequence[Path]) -> str:
    """sha256 of the size, the first part (a safetensors header) and samples of each file: takes milliseconds."""
    digest = hashlib.sha256()
    for path in sources:
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(_FIRST_PART))
            for number in range(_SAMPLES):
                stream.seek(size * number // _SAMPLES)
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


def full_digest(sources: Sequence[Path]) -> str:
    """sha256 of the full content of the files."""
    digest = hashlib.sha256()
    for path in sources:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


_TEXTS, _TOKENS, _SEED = 2, 32, 20

_TINY = np.float32(1e-6)


def smoothing_factors(network: Network) -> dict[Linear, Array]:
    """(in,) factors for the layers that read a normalized state: queries, keys, values, and feed-forward up.

    Where a few channels are far larger than the rest, 8 bits for a row leave little for the others. Dividing channel j
    of the input by a factor and multiplying column j of the weight by it changes nothing in exact arithmetic and evens
    out both (SmoothQuant, arXiv 2211.10438, exponent 1/2). The large channels belong to the network, not to the text:
    random tokens show the same ones, so no data is needed. Factors are powers of two, so that multiplying is exact.
    """
    smoothed = {linear for block in network.blocks for linear in (block.qkv, block.up)}
    largest: dict[Linear, Array] = {}

    def watch(linear: Linear, x: Array) -> None:
        if linear in smoothed:
            seen = np.abs(x).max(axis=(0, 1))
            largest[linear] = np.maximum(largest.get(linear, seen), seen)

    random = np.random.default_rng(_SEED)
    tokens = min(_TOKENS, network.max_positions)
    ids = random.integers(0, network.vocabulary, (_TEXTS, tokens)).astype(np.int32)
    # In float64: a rounding error that differs between processors could give another factor, and other integers.
    PlainNetwork(network, watch, exact=True).hidden(ids)
    return {linear: _factors(linear, seen) for linear, seen in largest.items()}


def _factors(linear: Linear, inputs: Array) -> Array:
    weights = np.abs(linear.read()).max(axis=0)
    logs = np.log2(np.maximum(inputs, _TINY) / np.maximum(weights, _TINY)) / 2
    # A channel that random tokens do not use must not become the largest when a text does use it.
    steps = np.maximum(np.rint(logs - logs.mean()), -2)
    factors: Array = np.exp2(steps).astype(np.float32)
    return factors

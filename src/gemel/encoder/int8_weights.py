"""Weights in int8: one scale per output, so that a large row does not coarsen its neighbours; kept next to the model.

The integers depend on the weights and on the bits alone. The file is a cache: missing, old or unreadable, it is made
again; where it cannot be written, nothing is lost but a moment at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.tensors import Tensors
from gemel.encoder.network import Linear
from gemel.errors import ModelError

Factors: TypeAlias = Callable[[], Mapping[Linear, NDArray[np.float32]]]

_VERSION = "2"


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    """weight * factors ≈ scale[:, None] * integers; the inputs are divided by the factors before the product."""

    integers: NDArray[np.int8]
    """(out, in)"""
    scale: NDArray[np.float32]
    """(out,)"""
    factors: NDArray[np.float32] | None = None
    """(in,) powers of two that even out loud channels; None: all ones."""


def quantize_linear(
    weight: NDArray[np.float32], *, bits: int = 8, factors: NDArray[np.float32] | None = None
) -> QuantizedLinear:
    """Symmetric integers of `bits` bits: 8 where the processor adds products in 32 bits, 7 where in 16."""
    weight = weight if factors is None else weight * factors
    most = 2 ** (bits - 1) - 1
    scale = np.abs(weight).max(axis=1) / np.float32(most)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)  # a row of zeros stays zeros
    integers = np.rint(weight / scale[:, None]).astype(np.int8)
    return QuantizedLinear(np.ascontiguousarray(integers), scale, factors)


class Int8Store:
    """Quantised layers by name, read from `FOLDER/.gemel/` or made and then kept there."""

    def __init__(self, folder: Path | None = None, sources: Sequence[Path] = ()) -> None:
        """`sources`: the weight files that the integers are made from. Without a folder nothing is kept."""
        self._folder = folder / ".gemel" if folder else None
        self._sources = sources
        self._bits = 8
        self._known: Tensors | None = None
        self._made: dict[str, QuantizedLinear] = {}

    def open(self, bits: int) -> Int8Store:
        """The store for weights of `bits` bits, with what an earlier run has kept."""
        self._bits = bits
        path = self._path()
        if path and path.is_file():
            with suppress(ModelError, OSError):
                self._known = Tensors({path: None})
        return self

    def get(self, name: str, linear: Linear, factors: Factors) -> QuantizedLinear:
        """The layer's integers, as kept or made now; `factors` are asked for only when they must be made."""
        known = self._known
        if known is not None and f"{name}.integers" in known and f"{name}.scale" in known:
            integers = np.asarray(known[f"{name}.integers"])
            if integers.shape == linear.weight.shape:
                return QuantizedLinear(
                    integers.view(np.int8), known[f"{name}.scale"], known.get(f"{name}.factors")
                )
        self._made[name] = quantize_linear(linear.weight, bits=self._bits, factors=factors().get(linear))
        return self._made[name]

    def save(self) -> None:
        """Keeps what was made, whole or not at all; a folder that cannot be written to is left as it is."""
        path = self._path()
        if not path or not self._made or self._known is not None:
            return
        from safetensors.numpy import save_file

        tensors: dict[str, NDArray[np.generic]] = {}
        for name, layer in self._made.items():
            tensors |= {f"{name}.integers": layer.integers, f"{name}.scale": layer.scale}
            if layer.factors is not None:
                tensors[f"{name}.factors"] = layer.factors
        working = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(exist_ok=True)
            save_file(tensors, working)
            working.replace(path)
        except OSError:
            with suppress(OSError):
                working.unlink()

    def _path(self) -> Path | None:
        """The name holds what the integers depend on: files of another size or date are another name."""
        if self._folder is None:
            return None
        import hashlib

        digest = hashlib.sha256(f"{_VERSION} {self._bits}".encode())
        for path in self._sources:
            status = path.stat()
            digest.update(f" {status.st_size} {status.st_mtime_ns}".encode())
        return self._folder / f"int8-{digest.hexdigest()[:16]}.safetensors"

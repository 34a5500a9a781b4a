"""A normalising flow in a checkpoint: plain data, read and written. `encoder/head.py` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.head import Dense
from gemel.checkpoint.json_file import read_object
from gemel.checkpoint.weights import module_weights
from gemel.errors import ModelError

FLOW = "gemel.postprocess.Flow"
"""The type of a flow in modules.json: the only module that sentence-transformers does not know."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """One step of a flow: d numbers change places, then the first half says how the second is scaled and moved.

    a, b = x[order] split at d // 2;  s, t = w2 @ relu(w1 @ a + b1) + b2 split in the middle
    -> a, b * exp(tanh(s)) + t
    """

    order: NDArray[np.int64]
    """(d,) a permutation"""
    w1: NDArray[np.float32]
    b1: NDArray[np.float32]
    w2: NDArray[np.float32]
    b2: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Flow(Dense):
    """A square dense layer whose activation is an invertible network: `couplings`, one after the other."""

    couplings: tuple[Coupling, ...]


def read_flow(model: Path, folder: Path) -> Flow:
    """The flow in `folder`, every shape checked: what is wrong is refused here, not at the first text."""
    weights = module_weights(model, folder)
    count = read_object(folder / "config.json").get("couplings")
    if not isinstance(count, int) or not 0 <= count <= len(weights):
        raise ModelError(f"{folder}: 'couplings' must be their number, got {count!r}")
    names = ["linear.weight", "linear.bias", *(name for n in range(count) for name in coupling_names(n))]
    missing = [name for name in names if name not in weights]
    if missing:
        raise ModelError(f"{folder}: a flow of {count} couplings needs the tensor {missing[0]!r}")
    weight, bias = weights["linear.weight"], weights["linear.bias"]
    if weight.ndim != 2 or weight.shape != (*bias.shape, *bias.shape):
        raise ModelError(
            f"{folder}: a weight of shape {weight.shape} and a bias of shape {bias.shape} are no flow"
        )
    couplings = tuple(
        Coupling(weights[order].astype(np.int64), *(weights[name] for name in others))
        for order, *others in map(coupling_names, range(count))
    )
    for number, coupling in enumerate(couplings):
        _check_coupling(f"{folder}: coupling {number}", coupling, len(bias))
    return Flow(weight, bias, "flow", couplings)


def flow_tensors(flow: Flow) -> dict[str, NDArray[Any]]:
    """What `read_flow` reads."""
    tensors: dict[str, NDArray[Any]] = {"linear.weight": flow.weight}
    assert flow.bias is not None, "a flow starts with a mean to subtract"
    tensors["linear.bias"] = flow.bias
    for number, step in enumerate(flow.couplings):
        parts = (step.order.astype(np.int32), step.w1, step.b1, step.w2, step.b2)
        tensors.update(zip(coupling_names(number), parts, strict=True))
    return tensors


def coupling_names(number: int) -> tuple[str, ...]:
    """Names of the tensors of one coupling, in the order of its fields."""
    return tuple(f"couplings.{number}.{part}" for part in ("order", "w1", "b1", "w2", "b2"))


def _check_coupling(where: str, step: Coupling, dim: int) -> None:
    half, hidden = dim // 2, len(step.b1) if step.b1.ndim == 1 else -1
    shapes = (step.w1.shape, step.b1.shape, step.w2.shape, step.b2.shape)
    asked = ((hidden, half), (hidden,), (2 * (dim - half), hidden), (2 * (dim - half),))
    if shapes != asked:
        raise ModelError(f"{where}: tensors of shapes {shapes} do not fit {dim} dimensions")
    if not np.array_equal(np.sort(step.order), np.arange(dim)):
        raise ModelError(f"{where}: 'order' is not an order of {dim} numbers")

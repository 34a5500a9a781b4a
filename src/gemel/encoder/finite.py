"""Numbers that are none: vectors that hold NaN or infinity are an error that says where they come from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.tensors import is_finite
from gemel.errors import ModelError


def check_finite(numbers: NDArray[np.float32], checkpoint: Checkpoint) -> None:
    """An error that names a weight of the checkpoint that is not finite, or says that the numbers grew too large."""
    if np.isfinite(numbers).all():
        return
    name = next(_bad_weights(checkpoint), None)
    if name is not None:
        raise ModelError(
            f"{checkpoint.name} gives vectors that are not numbers: its weight {name!r} holds NaN or infinite values. "
            "Fetch or save the model again"
        )
    raise ModelError(
        f"{checkpoint.name} gives vectors that are not numbers, though all of its weights are: they grow beyond the "
        "range of float32 on the way. Train it again, with a smaller learning rate"
    )


def check_weights(checkpoint: Checkpoint) -> None:
    """As `check_finite`, of the weights themselves: for engines that read the files without us."""
    name = next(_bad_weights(checkpoint), None)
    if name is not None:
        raise ModelError(
            f"the weight {name!r} of {checkpoint.name} holds NaN or infinite values. Fetch or save the model again"
        )


def _bad_weights(checkpoint: Checkpoint) -> Iterator[str]:
    for name in checkpoint.weights:
        if not checkpoint.weights.finite(name):
            yield name
    for number, layer in enumerate(checkpoint.dense, start=1):
        if not (is_finite(layer.weight) and (layer.bias is None or is_finite(layer.bias))):
            yield f"dense layer {number}"

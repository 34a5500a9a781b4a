"""A text's vector as a sum: one part for each token, and one for the biases of dense layers if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.flow import Flow
from gemel.encoder.pooling import pool
from gemel.errors import InputError
from gemel.model import Model, TokenVectors, changed
from gemel.options import EncodeOptions

LINEAR = ("mean", "mean-sqrt-len", "weighted-mean", "cls", "last")
OFFSET = "(offset)"


@dataclass(frozen=True, eq=False)
class Parts:
    """The rows of `vectors` add up to the text's vector, before it is scaled to length 1."""

    tokens: tuple[str, ...]
    vectors: NDArray[np.float64]
    """(t, dim)"""


def parts_of(
    model: Model, texts: Sequence[str], options: EncodeOptions | None = None, **changes: Any
) -> list[Parts]:
    """The parts of each text's vector, or an error where it is no sum over tokens."""
    _check_sums(model)
    settings = changed(options, changes)
    if settings.dim is not None and settings.dim > model.dim:
        raise InputError(f"dim must be at most {model.dim}, the model's own, got {settings.dim}")
    dim = settings.dim or model.checkpoint.truncate_dim
    return [_parts(model, found, dim) for found in model.tokens(texts, settings)]


def _check_sums(model: Model) -> None:
    refused = [mode for mode in model.checkpoint.pooling.modes if mode not in LINEAR]
    if refused:
        raise InputError(
            f"{model.name} pools by {refused[0]!r}: its vector is no sum over tokens, so a score cannot be split. "
            f"Poolings that can: {', '.join(LINEAR)}"
        )
    for layer in model.checkpoint.dense:
        if isinstance(layer, Flow) or layer.activation != "identity":
            what = "a flow" if isinstance(layer, Flow) else f"a dense layer with {layer.activation}"
            raise InputError(
                f"{model.name} has {what} after pooling: its vector is no sum over tokens, so a score cannot be split"
            )


def _parts(model: Model, found: TokenVectors, dim: int | None) -> Parts:
    modes, count = model.checkpoint.pooling.modes, len(found.tokens)
    hidden = found.vectors.astype(np.float64)
    # Pooled unit vectors are the weights of the tokens, whatever the pooling.
    unit = np.eye(count, dtype=np.float32)[None]
    weights = [pool(unit, (mode,), found.skipped)[0].astype(np.float64) for mode in modes]
    vectors = np.concatenate([weight[:, None] * hidden for weight in weights], axis=1)
    offset = np.zeros(vectors.shape[1])
    for layer in model.checkpoint.dense:
        matrix = layer.weight.astype(np.float64).T
        vectors, offset = vectors @ matrix, offset @ matrix
        if layer.bias is not None:
            offset = offset + layer.bias
    tokens = found.tokens
    if offset.any():
        tokens, vectors = (*tokens, OFFSET), np.vstack([vectors, offset])
    return Parts(tokens, vectors[:, :dim])

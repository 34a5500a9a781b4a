"""Weights by the names of a checkpoint, checked against the shapes that its config asks for.

Checkpoints saved from a larger model put a prefix on every name ("bert.", "model.", "0.auto_model."); it is
found by looking for the word table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gemel.checkpoint.tensors import is_finite
from gemel.encoder.network import Array, Linear, Norm
from gemel.errors import ModelError

# Checkpoints converted from the first BERT release name the two parts of a norm so.
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}


class CheckpointWeights:
    """Takes arrays out of a checkpoint by role; every refusal names the weight."""

    def __init__(self, weights: Mapping[str, Array], word: str = "embeddings.word_embeddings.weight") -> None:
        self._weights = weights
        self._prefix = _find_prefix(weights, word)
        self._word = word

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._weights

    def word(self, width: int) -> Array:
        """The token table, not copied; as many rows as it has."""
        table = self._read(self._word)
        self._check_shape(self._word, table, (len(table), width))
        if not len(table):
            raise ModelError(f"the weight {self._prefix + self._word!r} has no rows: the vocabulary is empty")
        return table  # not read from end to end: it is the largest, and what is wrong with a row shows in its vectors

    def array(self, name: str, *shape: int) -> Array:
        """The weight as float32 and in exactly this shape; no copy when it is float32 already."""
        array = self._read(name)
        self._check_shape(name, array, shape)
        # Attention can hide a NaN from everything that comes after it: it is looked for here, once.
        if not is_finite(array):
            raise ModelError(
                f"the weight {self._prefix + name!r} holds NaN or infinite values. Fetch or save the model again"
            )
        return array

    def _check_shape(self, name: str, array: Array, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            raise ModelError(
                f"the weight {self._prefix + name!r} has shape {array.shape}, config.json asks for {shape}. "
                "One of the two files belongs to another model"
            )

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        """`name`.weight (outputs, inputs), with `name`.bias where the architecture has one."""
        return Linear(
            self.array(f"{name}.weight", outputs, inputs),
            self.array(f"{name}.bias", outputs) if bias else None,
        )

    def stacked(self, names: Sequence[str], outputs: int, inputs: int) -> Linear:
        """Several linear layers over the same input as one: the rows of the first, then of the second, ..."""
        parts = [self.linear(name, outputs, inputs) for name in names]
        return Linear(
            np.concatenate([part.weight for part in parts]),
            np.concatenate([part.bias for part in parts if part.bias is not None]),
        )

    def norm(self, name: str, width: int, epsilon: float, *, bias: bool = True) -> Norm:
        """A layer norm; also found under its old names gamma and beta."""

        def part(which: str) -> Array:
            old = f"{name}.{_OLD_NAMES[which]}"
            return self.array(old if old in self else f"{name}.{which}", width)

        return Norm(part("weight"), part("bias") if bias else None, float(epsilon))

    def _read(self, name: str) -> Array:
        try:
            array = self._weights[self._prefix + name]
        except KeyError:
            raise ModelError(
                f"the weight {self._prefix + name!r} is missing from the checkpoint. "
                "The file is not whole, or config.json belongs to another model"
            ) from None
        return np.asarray(array, dtype=np.float32)


def _find_prefix(weights: Mapping[str, Array], word: str) -> str:
    found = [name.removesuffix(word) for name in weights if name == word or name.endswith("." + word)]
    if not found:
        raise ModelError(
            f"the weight {word!r} is missing from the checkpoint, with any prefix. "
            "config.json belongs to another model, or the weights hold no encoder"
        )
    if len(found) > 1:
        raise ModelError(
            f"the checkpoint holds {len(found)} encoders (prefixes {', '.join(map(repr, sorted(found)))}). "
            "Save the one to use on its own"
        )
    return found[0]

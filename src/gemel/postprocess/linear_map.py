"""A linear map of vectors: what whitening and centring find, and what a model keeps as its last dense layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.checkpoint.head import Dense
from gemel.encoder.head import finish
from gemel.errors import InputError
from gemel.similarity import checked
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class LinearMap:
    """x -> weight @ x + bias."""

    weight: Vectors
    """(out, in) float32"""
    bias: Vectors
    """(out,) float32"""
    note: str = ""
    """What to know about the fit, for a person."""

    @property
    def layer(self) -> Dense:
        """The map as a layer of a model, without activation."""
        return Dense(self.weight, self.bias, "identity")

    def apply(self, vectors: ArrayLike) -> Vectors:
        """(n, in) -> (n, out): the same bits as a model with this layer gives before it normalises."""
        ready = checked(vectors, "vectors")
        if ready.shape[1] != self.weight.shape[1]:
            raise InputError(
                f"vectors have {ready.shape[1]} dimensions, the map takes {self.weight.shape[1]}"
            )
        return finish(ready, [self.layer], unit=False, dim=None)


@dataclass(frozen=True, eq=False)
class Axes:
    """Mean and principal directions of vectors, in float64."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    """(d,) variances, largest first"""
    directions: NDArray[np.float64]
    """(d, d), a row for each variance"""


def principal_axes(vectors: ArrayLike) -> Axes:
    """Where the vectors lie and how they spread; the sign of a direction is chosen, so that two runs agree."""
    ready = checked(vectors, "vectors")
    if len(ready) < 2:
        raise InputError(f"a fit needs at least 2 vectors, got {len(ready)}. Give a few thousand")
    exact = ready.astype(np.float64)
    mean = exact.mean(axis=0)
    centred = exact - mean
    spread, columns = np.linalg.eigh(centred.T @ centred / (len(ready) - 1))
    directions = columns.T[::-1]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    return Axes(mean, np.maximum(spread[::-1], 0.0), directions * signs[:, None])


def linear_map(weight: NDArray[np.float64], mean: NDArray[np.float64], note: str = "") -> LinearMap:
    """The map x -> weight @ (x - mean)."""
    ready = np.ascontiguousarray(weight, dtype=np.float32)
    return LinearMap(ready, (-weight @ mean).astype(np.float32), note)

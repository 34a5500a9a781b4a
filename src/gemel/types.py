"""Shapes that cross module borders: array names, result objects, the two protocols. Frozen data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
"""(n, dim) float32, one row a text."""
Ids: TypeAlias = NDArray[np.int32]
"""(b, t) token ids: b texts of exactly t tokens each."""
AnyVectors: TypeAlias = NDArray[Any]  # float32, float16, int8 or packed uint8, as `EncodeOptions.output` says


class Encoder(Protocol):
    """Anything that turns texts into vectors. Evaluation, index and server ask for no more than this."""

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> AnyVectors: ...


class StreamEncoder(Encoder, Protocol):
    """An encoder with bounded memory and a name for what it computes; encoding to disk needs both."""

    def encode_stream(self, texts: Iterable[str]) -> Iterator[AnyVectors]: ...


@dataclass(frozen=True)
class EncodeReport:
    """Vectors and what happened to each text on the way."""

    vectors: AnyVectors
    """(n, dim), the caller's order."""
    tokens: NDArray[np.int64]
    """(n,) tokens of each whole text, marks included."""
    kept: NDArray[np.int64]
    """(n,) tokens that reached the vector; equal to `tokens` when nothing was cut."""
    duplicates: int
    """Texts that were equal to an earlier one, so not computed again."""
    seconds: float

    @property
    def truncated(self) -> NDArray[np.int64]:
        """Positions of the texts that lost tokens."""
        return np.flatnonzero(self.kept < self.tokens)

    def summary(self) -> str:
        """One line for a person."""
        cut = self.truncated
        lost = int((self.tokens - self.kept)[cut].sum())
        parts = [f"{len(self.tokens):,} texts", f"{int(self.tokens.sum()):,} tokens"]
        parts.append(f"{self.duplicates:,} repeated")
        parts.append(f"{len(cut):,} cut ({lost:,} tokens lost)" if len(cut) else "none cut")
        parts.append(f"{self.seconds:.2f} s")
        return ", ".join(parts)

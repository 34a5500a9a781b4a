"""Types that many modules share: names of arrays, the protocol of encoders, results of encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
"""(n, dim) float32, one row per text."""
Ids: TypeAlias = NDArray[np.int32]
"""(b, t) token ids: b texts of exactly t tokens each."""
AnyVectors: TypeAlias = NDArray[Any]  # float32, float16, int8 or packed uint8, as `EncodeOptions.output` says


class Encoder(Protocol):
    """Anything that turns texts into vectors; evaluation and search need no more than this."""

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> AnyVectors: ...


@dataclass(frozen=True)
class EncodeReport:
    """The vectors, and what happened to each text."""

    vectors: AnyVectors
    """(n, dim), in the order of the texts."""
    tokens: NDArray[np.int64]
    """(n,) tokens of each text, special tokens included."""
    kept: NDArray[np.int64]
    """(n,) tokens that were read; equal to `tokens` where nothing was truncated."""
    duplicates: int
    """Texts that equal an earlier one, and were not computed again."""
    seconds: float

    @property
    def truncated(self) -> NDArray[np.int64]:
        """Positions of the texts that lost tokens."""
        return np.flatnonzero(self.kept < self.tokens)

    def summary(self) -> str:
        """One line for people to read."""
        cut = self.truncated
        lost = int((self.tokens - self.kept)[cut].sum())
        parts = [f"{len(self.tokens):,} texts", f"{int(self.tokens.sum()):,} tokens"]
        parts.append(f"{self.duplicates:,} repeated")
        parts.append(f"{len(cut):,} cut ({lost:,} tokens lost)" if len(cut) else "none cut")
        parts.append(f"{self.seconds:.2f} s")
        return ", ".join(parts)


@dataclass(frozen=True)
class TokenEmbeddings:
    """One text, token by token."""

    tokens: tuple[str, ...]
    vectors: Vectors
    """(t, width): the network's last hidden states, before pooling."""
    skipped: int = 0
    """Tokens at the start that pooling skips: those of a prompt that does not count."""

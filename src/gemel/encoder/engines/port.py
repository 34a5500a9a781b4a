"""The port every engine fits: token ids in, hidden states out, nothing else.

What every engine refuses, in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gemel.errors import InputError
from gemel.types import Ids, Vectors


class Engine(Protocol):
    """Runs one network. Safe to call from several threads at once.

    Law: the hidden states of a row are the same bits whatever the other rows are, and on any number of threads.
    """

    name: str
    width: int
    batch_tokens: int
    """Tokens to a call at which this engine is fastest."""

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32.

        The call uses one core, or up to `threads` of them where the engine can share one call.
        """
        ...

    def bytes_per_text(self, tokens: int) -> int:
        """Working memory that one text of so many tokens takes while it runs, result included."""
        ...


@runtime_checkable
class MixingEngine(Engine, Protocol):
    """An engine that takes groups of several lengths in one call, so that few texts of many lengths fill it."""

    def hidden_many(self, groups: Sequence[Ids], threads: int = 1) -> list[Vectors]:
        """`hidden` of each group."""
        ...


def check_ids(ids: Ids, *, vocabulary: int, max_positions: int) -> None:
    """Token ids of b >= 1 texts of t >= 1 tokens each, all inside the vocabulary and the positions."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise InputError(f"token ids must be (texts, tokens) with at least one of each, got {ids.shape}")
    if ids.shape[1] > max_positions:
        raise InputError(
            f"the texts have {ids.shape[1]} tokens, the network has {max_positions} places. Cut them first"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        bad = low if low < 0 else high
        raise InputError(
            f"token id {bad} is outside the vocabulary (0 to {vocabulary - 1}). "
            "The tokenizer and the weights belong to different models"
        )

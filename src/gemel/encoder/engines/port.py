"""The port every engine fits: token ids in, hidden states out, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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

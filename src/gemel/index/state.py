"""What an index works with at one moment; replaced as a whole when the index is migrated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gemel.index.binding import Binding
from gemel.index.coder import Coder
from gemel.index.port import Table


@dataclass(frozen=True, eq=False)
class State:
    """A table, what encodes for it, and what its header says of that."""

    table: Table
    coder: Coder
    binding: Binding | None
    """None: vectors only, bound to no model."""

    @cached_property
    def dim(self) -> int:
        """Numbers in a vector; read once, as a table never changes it."""
        return self.table.header.dim

    @property
    def passage_tokens(self) -> int | None:
        """As the index recorded it; part of every digest."""
        return None if self.binding is None else self.binding.passage_tokens

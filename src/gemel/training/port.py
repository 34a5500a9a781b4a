"""What the loop trains: things to encode in, one vector for each out. Bi- and cross-encoders both fit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gemel.types import Encoder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

Item: TypeAlias = Hashable
"""What goes through the network at once: a text, or for a cross-encoder a pair of texts."""


class Network(Protocol):
    """A network in torch that starts from a checkpoint and is saved as one."""

    module: nn.Module
    """All its weights."""
    dim: int
    """Numbers that leave it for each item."""
    gives_vectors: bool
    """Each text has a vector, so that one can look how the vectors lie; not so in a cross-encoder."""
    vocabulary: int
    """Token ids are below this."""

    def items(self, columns: tuple[list[str], ...]) -> Sequence[Sequence[Item]]:
        """What to encode for the text columns of a batch: the texts themselves, or one column of pairs."""
        ...

    def tokens(
        self, items: Sequence[Item], *, noise: float = 0.0, rng: np.random.Generator | None = None
    ) -> list[Any]:
        """Token ids of each item, cut to length; `noise` is the share of tokens that `rng` takes out."""
        ...

    def forward(self, tokens: Sequence[Any]) -> Tensor:
        """(n, dim) float32, one row for each item, with its graph."""
        ...

    def encoder(self) -> Encoder:
        """The network as it is now, for evaluation: no dropout, no graph."""
        ...

    def write(self, folder: Path, *, objective: nn.Module | None, about: Mapping[str, Any]) -> None:
        """Save a whole model in `folder`, replacing one that is there; `about` has labels and settings to keep."""
        ...

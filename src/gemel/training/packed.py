"""Texts of different lengths end to end in one row: no token is padding, except inside attention.

transformers runs a packed row like one long text; the attention registered here cuts it back into texts. Almost all
the work of a block is in its matrices, so padding only the attention saves most of what padding costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.text.tokenizer import TokenIds

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ATTENTION = "gemel-packed"
"""The name under which transformers knows the attention below."""


@dataclass(frozen=True, eq=False)
class Pack:
    """n texts of T tokens in all, the longest of L tokens."""

    ids: Tensor
    """(T,) token ids, text after text."""
    places: Tensor
    """(T,) the place of each token in its text, from 0."""
    owners: Tensor
    """(T,) which text each token belongs to."""
    lengths: Tensor
    """(n,)"""
    longest: int
    types: Tensor | None = None
    """(T,) the type of each token, where a network is told which of two texts it belongs to."""

    @property
    def texts(self) -> int:
        return len(self.lengths)

    def spread(self, rows: Tensor) -> Tensor:
        """(T, d) -> (n, L, d), zeros where a text has ended."""
        flat = rows.new_zeros(self.texts * self.longest, rows.shape[1])
        return flat.index_copy(0, self._slots, rows).view(self.texts, self.longest, rows.shape[1])

    def gather(self, padded: Tensor) -> Tensor:
        """(n, L, d) -> (T, d): the inverse of `spread`."""
        return padded.reshape(self.texts * self.longest, -1).index_select(0, self._slots)

    @property
    def _slots(self) -> Tensor:
        return self.owners * self.longest + self.places

    @property
    def absent(self) -> Tensor:
        """(n, L) True where there is no token."""
        import torch

        return torch.arange(self.longest, device=self.lengths.device)[None] >= self.lengths[:, None]


def pack(tokens: Sequence[TokenIds], device: torch.device) -> Pack:
    """All texts of a call, ready for the network."""
    import torch

    lengths = np.fromiter((len(ids) for ids in tokens), np.int64, len(tokens))
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.arange(int(lengths.sum())) - starts
    owners = np.repeat(np.arange(len(tokens)), lengths)
    ids = np.concatenate(tokens).astype(np.int64)
    longest = int(lengths.max(initial=0))
    arrays = [torch.from_numpy(array).to(device) for array in (ids, places, owners, lengths)]
    return Pack(arrays[0], arrays[1], arrays[2], arrays[3], longest)


@cache
def register_attention() -> None:
    """Make the packed attention known to transformers, once."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    texts: Pack,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of every text to itself: (1, h, T, d) each -> (1, T, h, d). No mask comes: `texts` knows all."""
    import torch

    _, heads, total, width = query.shape

    def by_text(states: Tensor) -> Tensor:
        rows = states[0].transpose(0, 1).reshape(total, heads * width)
        return texts.spread(rows).view(texts.texts, texts.longest, heads, width).transpose(1, 2)

    scores = torch.matmul(by_text(query * scaling), by_text(key).transpose(-1, -2))  # (n, h, L, L)
    scores = scores.masked_fill(texts.absent[:, None, None], float("-inf"))
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout, module.training)
    mixed = torch.matmul(weights, by_text(value)).transpose(1, 2)  # (n, L, h, d)
    return texts.gather(mixed.reshape(texts.texts, texts.longest, -1)).view(1, total, heads, width), None

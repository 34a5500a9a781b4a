"""Packed sequences: texts of different lengths end to end in one row, with no padding outside of attention.

transformers runs a packed row like one long text; the attention registered here splits it into texts again, those of
similar length together. Almost all the work of a layer is in its matrix products, which see no padding at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.pooling import POOLINGS
from gemel.encoder.tokenizer import TokenIds

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ATTENTION = "gemel-packed"
"""The name of the attention below in transformers."""

WASTE = 1.2
"""How much larger a padded bucket may be than the tokens in it."""


@dataclass(frozen=True, eq=False)
class LengthBucket:
    """Consecutive texts of similar length in a pack: b texts, the longest of L tokens."""

    start: int
    """The first of its tokens in the pack."""
    tokens: int
    texts: int
    longest: int
    slots: Tensor | None
    """(tokens,) the index of each token after padding to L; None: all texts have L tokens."""
    absent: Tensor | None
    """(b, L) True for tokens that no other one sees: padding, and those that `pack` was told of; None: all are seen."""

    def spread(self, rows: Tensor) -> Tensor:
        """(T, d) of the whole pack -> (b, L, d) of this bucket, padded with zeros."""
        own = rows[self.start : self.start + self.tokens]
        if self.slots is not None:
            own = rows.new_zeros(self.texts * self.longest, rows.shape[1]).index_copy(0, self.slots, own)
        return own.view(self.texts, self.longest, rows.shape[1])

    def gather(self, padded: Tensor) -> Tensor:
        """(b, L, d) -> (tokens, d): the inverse of `spread`."""
        flat = padded.reshape(self.texts * self.longest, -1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass(frozen=True, eq=False)
class Pack:
    """n texts with T tokens in total, the longest first."""

    ids: Tensor
    """(T,) token ids, text after text."""
    positions: Tensor
    """(T,) the position of each token in its text, from 0."""
    owners: Tensor
    """(T,) the text of each token, in the order of the pack."""
    lengths: Tensor
    """(n,)"""
    back: Tensor
    """(n,) the index in the pack of each text, in the order of the input."""
    buckets: tuple[LengthBucket, ...]
    types: Tensor | None = None
    """(T,) token type ids, for networks that distinguish the two texts of a pair."""

    @property
    def texts(self) -> int:
        return len(self.lengths)

    def map_padded(self, rows: Tensor, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """`function(states (b, L, d), absent)` of each bucket of (T, d) token vectors, the results (b, d) joined."""
        import torch

        return torch.cat([function(bucket.spread(rows), bucket.absent) for bucket in self.buckets])


def pack(tokens: Sequence[TokenIds], device: torch.device, *, seen: Sequence[int] | None = None) -> Pack:
    """All texts of a call, packed for the network.

    `seen`: of each text, how many of its first tokens are seen by its tokens; None: all.
    """
    import torch

    given = np.fromiter((len(ids) for ids in tokens), np.int64, len(tokens))
    order = np.argsort(-given, kind="stable")
    lengths = given[order]
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    owners = np.repeat(np.arange(len(tokens)), lengths)
    ids = np.concatenate([tokens[row] for row in order]).astype(np.int64)
    arrays = [
        torch.from_numpy(array).to(device) for array in (ids, positions, owners, lengths, np.argsort(order))
    ]
    keys = None if seen is None else np.fromiter(seen, np.int64, len(tokens))[order]
    buckets = tuple(_bucket(lengths, starts, positions, part, device, keys) for part in _parts(lengths))
    return Pack(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], buckets)


def _parts(lengths: NDArray[np.int64]) -> list[slice]:
    """Slices of the descending lengths, each with little padding."""
    parts, first, filled = [], 0, 0
    for index, length in enumerate(lengths.tolist()):
        area = lengths[first] * (index - first + 1)
        if index > first and area > WASTE * (filled + length):
            parts.append(slice(first, index))
            first, filled = index, 0
        filled += length
    return [*parts, slice(first, len(lengths))] if len(lengths) else parts


def _bucket(
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    positions: NDArray[np.int64],
    part: slice,
    device: torch.device,
    keys: NDArray[np.int64] | None,
) -> LengthBucket:
    import torch

    own, start, longest = lengths[part], int(starts[part.start]), int(lengths[part.start])
    tokens = int(own.sum())
    counts = own if keys is None else keys[part]
    absent = None
    if counts.min() < longest:
        absent = torch.from_numpy(np.arange(longest)[None] >= counts[:, None]).to(device)
    if own[-1] == longest:
        return LengthBucket(start, tokens, len(own), longest, None, absent)
    rows = np.repeat(np.arange(len(own)), own)
    slots = torch.from_numpy(rows * longest + positions[start : start + tokens]).to(device)
    return LengthBucket(start, tokens, len(own), longest, slots, absent)


def pool_packed(hidden: Tensor, pack: Pack, modes: tuple[str, ...]) -> Tensor:
    """(T, d) token vectors -> (n, modes * d), all modes concatenated, texts in the order of the input."""
    import torch

    return torch.cat([POOLINGS[mode].torch_form(hidden, pack) for mode in modes], dim=1)[pack.back]


@cache
def register_attention() -> None:
    """Register the packed attention with transformers, once."""
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
    """Attention of every text to itself: (1, h, T, d) each -> (1, T, h, d). `texts` replaces the mask."""
    import torch

    _, heads, total, width = query.shape
    query, key, value = (_rows(states) for states in (query * scaling, key, value))
    mixed = []
    for bucket in texts.buckets:

        def by_head(rows: Tensor, bucket: LengthBucket = bucket) -> Tensor:
            return bucket.spread(rows).view(bucket.texts, bucket.longest, heads, width).transpose(1, 2)

        scores = torch.matmul(by_head(query), by_head(key).transpose(-1, -2))  # (b, h, L, L)
        if bucket.absent is not None:
            scores = scores.masked_fill(bucket.absent[:, None, None], float("-inf"))
        weights = torch.nn.functional.dropout(scores.softmax(-1), dropout, module.training)
        seen = torch.matmul(weights, by_head(value)).transpose(1, 2)  # (b, L, h, d)
        mixed.append(bucket.gather(seen.reshape(bucket.texts, bucket.longest, -1)))
    return torch.cat(mixed).view(1, total, heads, width), None


def _rows(states: Tensor) -> Tensor:
    """(1, h, T, d) -> (T, h * d)"""
    return states[0].transpose(0, 1).reshape(states.shape[2], -1)
